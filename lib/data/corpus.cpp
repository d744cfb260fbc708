#include "data/corpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/content_hash.h"
#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

template <typename Stored>
class MemoryStore final : public TokenStore {
 public:
  explicit MemoryStore(const std::vector<int32_t>& tokens) : tokens_(tokens.size()) {
    std::transform(tokens.begin(), tokens.end(), tokens_.begin(),
                   [](int32_t id) { return static_cast<Stored>(id); });
  }
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void read(int64_t offset, int64_t count, int32_t* to) const override {
    std::copy_n(tokens_.begin() + offset, count, to);
  }

 private:
  std::vector<Stored> tokens_;
};

/// Tokenizes the text-like sources of one split and opens its token files.
class SourceReader {
 public:
  SourceReader(const DataSettings& settings, const Tokenizer& tokenizer, int64_t vocab_size)
      : settings_(settings), tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  /// Appends the source to `train`, except for its last `held_back` fraction, which goes to `val`.
  void read(const DataSource& source, DataSplit split, double held_back, Corpus& train,
            Corpus& val) const {
    const auto paths = expand_path(source.path, split);
    const int64_t begin = train.size();
    const DataFormat& format = format_of(paths.front(), source.format);
    for (const auto& path : paths) {
      const DataFormat& other = format_of(path, source.format);
      if (&other != &format) {
        throw DataError(fmt::format("{}: the files are of different formats ({} is {}, {} is {})",
                                    source.path, paths.front().string(), format.name, path.string(),
                                    other.name));
      }
      add_files(path, format, train);  // before their content is read
    }
    if (format.has_tokens()) {
      read_token_files(source, paths, format, held_back, train, val);
    } else {
      read_documents(source, paths, format, held_back, train, val);
    }
    train.add_source({source.path, source.weight, begin, train.size() - begin, paths.size()});
  }

 private:
  static void add_files(const std::filesystem::path& path, const DataFormat& format,
                        Corpus& corpus) {
    corpus.add_file({path.string(), InputFile(path).opened()});
    if (format.companions != nullptr) {
      for (const auto& companion : format.companions(path)) {
        corpus.add_file({companion.string(), InputFile(companion).opened()});
      }
    }
  }

  std::vector<int32_t> tokens_of(const std::vector<std::string>& documents, size_t begin,
                                 size_t end, bool separated) const {
    const SequenceFrame frame = separated ? tokenizer_.frame() : SequenceFrame{};
    std::vector<int32_t> tokens;
    const auto append = [&](const std::vector<int32_t>& ids) {
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    };
    for (size_t i = begin; i < end; ++i) {
      append(frame.before_document);
      append(tokenizer_.encode(documents[i]));
      append(frame.after_document);
    }
    return tokens;
  }

  void append_tokens(const std::vector<int32_t>& tokens, Corpus& to) const {
    if (!tokens.empty()) {
      auto store = memory_store(tokens);
      const int64_t size = store->size();
      to.append(std::move(store), 0, size);
    }
  }

  void read_documents(const DataSource& source, const std::vector<std::filesystem::path>& paths,
                      const DataFormat& format, double held_back, Corpus& train,
                      Corpus& val) const {
    if (tokenizer_.type() == "none") {
      throw ConfigError(fmt::format(
          "data.tokenizer is none, but {} is text; name a tokenizer, or give token files",
          source.path));
    }
    if (tokenizer_.vocab_size() > vocab_size_) {
      throw ConfigError(fmt::format(
          "the tokenizer has {} ids but the model's vocab_size is {}; raise model.vocab_size",
          tokenizer_.vocab_size(), vocab_size_));
    }
    std::vector<std::string> documents;
    for (const auto& path : paths) {
      format.for_each_document(path, TextKey{settings_.text_key},
                               [&](std::string text) { documents.push_back(std::move(text)); });
    }
    size_t boundary = documents.size();
    const bool in_records = format.content == DataContent::documents;
    const bool separated = in_records || documents.size() > 1;
    if (held_back > 0 && in_records) {
      boundary =
          static_cast<size_t>(split_point(static_cast<int64_t>(documents.size()), held_back));
    } else if (held_back > 0) {
      boundary = split_text(documents, held_back);
    }
    try {
      append_tokens(tokens_of(documents, 0, boundary, separated), train);
      append_tokens(tokens_of(documents, boundary, documents.size(), separated), val);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", source.path, error.what()));
    }
  }

  /// Cuts the document that holds the split point in two; returns the index of the first held-back
  /// document.
  size_t split_text(std::vector<std::string>& documents, double held_back) const {
    std::vector<int64_t> lengths;
    int64_t total = 0;
    for (const std::string& text : documents) {
      lengths.push_back(count_units(text, tokenizer_));
      total += lengths.back();
    }
    int64_t left = split_point(total, held_back);
    size_t index = 0;
    while (index < documents.size() && left >= lengths[index]) {
      left -= lengths[index++];
    }
    if (index == documents.size() || left == 0) {
      return index;
    }
    const std::string& text = documents[index];
    const size_t cut = byte_of_unit(text, left, tokenizer_);
    std::string tail = text.substr(cut);
    documents[index].resize(cut);
    documents.insert(documents.begin() + static_cast<std::ptrdiff_t>(index) + 1, std::move(tail));
    return index + 1;
  }

  void read_token_files(const DataSource& source, const std::vector<std::filesystem::path>& paths,
                        const DataFormat& format, double held_back, Corpus& train,
                        Corpus& val) const {
    std::vector<std::shared_ptr<const TokenStore>> stores;
    int64_t total = 0;
    for (const auto& path : paths) {
      stores.push_back(format.open(path, vocab_size_));
      total += stores.back()->size();
    }
    if (total == 0) {
      throw DataError(fmt::format("{}: holds no tokens", source.path));
    }
    int64_t left = split_point(total, held_back);
    for (const auto& store : stores) {
      const int64_t cut = std::min(left, store->size());
      train.append(store, 0, cut);
      val.append(store, cut, store->size());
      left -= cut;
    }
  }

  const DataSettings& settings_;
  const Tokenizer& tokenizer_;
  int64_t vocab_size_;
};

void check_settings(const DataSettings& settings) {
  if (settings.train.empty()) {
    throw ConfigError("data.train names no source");
  }
  if (!(settings.val_fraction >= 0.0 && settings.val_fraction < 1.0)) {
    throw ConfigError(
        fmt::format("data.val_fraction is {}; it must be in [0, 1)", settings.val_fraction));
  }
  for (const DataSource& source : settings.val) {
    if (source.weight != 1.0) {
      throw ConfigError(fmt::format(
          "data.val: {} has weight {}, but validation reads every token once; weights are for "
          "data.train",
          source.path, source.weight));
    }
  }
}

}  // namespace

void Corpus::append(std::shared_ptr<const TokenStore> store, int64_t begin, int64_t end) {
  check(begin >= 0 && begin <= end && end <= store->size(), "a corpus segment is out of range");
  if (begin < end) {
    segments_.push_back({std::move(store), begin, size_, end - begin});
    size_ += end - begin;
  }
}

bool Corpus::is_blend() const {
  return sources_.size() > 1 &&
         std::any_of(sources_.begin(), sources_.end(),
                     [](const CorpusSource& source) { return source.weight != 1.0; });
}

void Corpus::read(int64_t offset, int64_t count, int32_t* to) const {
  check(offset >= 0 && count >= 0 && offset <= size_ && count <= size_ - offset,
        "a corpus read is out of range");
  auto segment = std::upper_bound(
      segments_.begin(), segments_.end(), offset,
      [](int64_t position, const Segment& s) { return position < s.corpus_begin + s.count; });
  while (count > 0) {
    const int64_t within = offset - segment->corpus_begin;
    const int64_t part = std::min(count, segment->count - within);
    segment->store->read(segment->store_begin + within, part, to);
    offset += part;
    count -= part;
    to += part;
    ++segment;
  }
}

std::string Corpus::fingerprint() const {
  constexpr int64_t kSample = 1024;
  constexpr int64_t kSamplesPerSegment = 16;
  uint64_t hash = 0;
  std::vector<int32_t> tokens(kSample);
  for (const Segment& segment : segments_) {
    hash = content_hash(&segment.count, sizeof(segment.count), hash);
    const int64_t part = std::min(kSample, segment.count);
    const int64_t last = segment.count - part;
    for (int64_t i = 0; i < kSamplesPerSegment; ++i) {
      const int64_t offset = last / (kSamplesPerSegment - 1) * i +
                             last % (kSamplesPerSegment - 1) * i / (kSamplesPerSegment - 1);
      segment.store->read(segment.store_begin + offset, part, tokens.data());
      hash = content_hash(tokens.data(), static_cast<size_t>(part) * sizeof(int32_t), hash);
    }
  }
  if (is_blend()) {
    for (const CorpusSource& source : sources_) {
      hash = content_hash(&source.weight, sizeof(source.weight), hash);
    }
  }
  return fmt::format("{:016x}", hash);
}

std::shared_ptr<const TokenStore> memory_store(const std::vector<int32_t>& tokens) {
  const bool narrow = std::all_of(tokens.begin(), tokens.end(),
                                  [](int32_t id) { return id >= 0 && id < kU16Vocab; });
  if (narrow) {
    return std::make_shared<MemoryStore<uint16_t>>(tokens);
  }
  return std::make_shared<MemoryStore<int32_t>>(tokens);
}

CorpusSplits open_corpora(const DataSettings& settings, const Tokenizer& tokenizer,
                          int64_t vocab_size) {
  check_settings(settings);
  const SourceReader reader(settings, tokenizer, vocab_size);
  const double held_back = settings.val.empty() ? settings.val_fraction : 0.0;
  CorpusSplits splits;
  for (const DataSource& source : settings.train) {
    reader.read(source, DataSplit::train, held_back, splits.train, splits.val);
  }
  for (const DataSource& source : settings.val) {
    Corpus nothing;
    reader.read(source, DataSplit::val, 0.0, splits.val, nothing);
  }
  if (splits.train.size() == 0 && splits.val.size() > 0 && held_back > 0) {
    throw ConfigError(
        fmt::format("data.val_fraction {} leaves no tokens to train on", settings.val_fraction));
  }
  if (splits.train.size() == 0) {
    throw DataError(fmt::format("{}: no tokens to train on", settings.train.front().path));
  }
  return splits;
}

std::unique_ptr<Tokenizer> make_tokenizer(const DataSettings& settings) {
  return make_tokenizer(settings.tokenizer,
                        [&] { return all_text(settings.train, TextKey{settings.text_key}); });
}

}  // namespace fp8train
