#include "data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/content_hash.h"
#include "base/key_error.h"
#include "data/chat/dialogue_encoder.h"
#include "data/document_encoder.h"
#include "data/readers/data_format.h"
#include "data/samples.h"
#include "data/text_source.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

template <typename Stored>
class MemoryStore final : public TokenStore {
 public:
  MemoryStore(const std::vector<int32_t>& tokens, DocumentTable documents)
      : TokenStore(std::move(documents)), tokens_(tokens.size()) {
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
    const auto paths = files_of(source, split);
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
    if (format.content == DataContent::dialogues) {
      read_dialogues(source, paths, format, held_back, train, val);
    } else if (format.has_tokens()) {
      read_token_files(source, paths, format, held_back, train, val);
    } else {
      read_documents(source, paths, format, held_back, train, val);
    }
    train.add_source({source.path, source.weight, begin, train.size() - begin, paths.size()});
  }

 private:
  void add_files(const std::filesystem::path& path, const DataFormat& format,
                 Corpus& corpus) const {
    corpus.add_file({path.string(), InputFile(path).opened()});
    if (format.companions != nullptr) {
      for (const auto& companion : format.companions(path, packs_documents())) {
        corpus.add_file({companion.string(), InputFile(companion).opened()});
      }
    }
  }

  struct Encoded {
    std::vector<int32_t> tokens;
    DocumentTable documents;
  };

  Encoded encode(const std::vector<std::string>& documents, size_t begin, size_t end,
                 bool separated) const {
    Encoded all;
    DocumentEncoder on_threads(
        tokenizer_, 0, separated ? tokenizer_.frame() : SequenceFrame{},
        [&](const EncodedText& text) {
          for (const size_t of_text : text.ends) {
            all.documents.ends.push_back(static_cast<int64_t>(all.tokens.size() + of_text));
          }
          all.tokens.insert(all.tokens.end(), text.ids.begin(), text.ids.end());
        });
    for (size_t i = begin; i < end; ++i) on_threads.add(documents[i]);
    on_threads.finish();
    return all;
  }

  void append_encoded(Encoded encoded, Corpus& to) const {
    const auto store = memory_store(encoded.tokens, std::move(encoded.documents));
    to.append(store, 0, store->size());
  }

  void read_dialogues(const DataSource& source, const std::vector<std::filesystem::path>& paths,
                      const DataFormat& format, double held_back, Corpus& train,
                      Corpus& val) const {
    check_tokenizer(source);
    std::vector<ChatEncoder::Encoded> dialogues;
    TextBudget budget;
    for_each_encoded_dialogue(
        tokenizer_, settings_.chat_template, "data.chat_template", 0,
        [&](const DialogueVisitor& visit) {
          for (const auto& path : paths) format.for_each_dialogue(path, settings_.rules(), visit);
        },
        [&](ChatEncoder::Encoded dialogue) {
          budget.add(sizeof(dialogue) + dialogue.ids.size() * sizeof(int32_t), source.path);
          dialogues.push_back(std::move(dialogue));
        });
    const auto boundary =
        static_cast<size_t>(split_point(static_cast<int64_t>(dialogues.size()), held_back));
    const auto append = [&](size_t begin, size_t end, Corpus& to) {
      Encoded all;
      for (size_t i = begin; i < end; ++i) {
        const auto& [ids, is_target] = dialogues[i];
        all.tokens.insert(all.tokens.end(), ids.begin(), ids.end());
        std::copy(is_target.begin(), is_target.end(), std::back_inserter(all.documents.is_target));
        all.documents.ends.push_back(static_cast<int64_t>(all.tokens.size()));
      }
      append_encoded(std::move(all), to);
    };
    append(0, boundary, train);
    append(boundary, dialogues.size(), val);
  }

  void check_tokenizer(const DataSource& source) const {
    if (tokenizer_.type() == TokenizerType::none) {
      throw KeyError("data.tokenizer",
                     fmt::format(" is none, but {} is text; name a tokenizer, or give token files",
                                 source.path));
    }
    if (tokenizer_.vocab_size() > vocab_size_) {
      throw ConfigError(fmt::format(
          "the tokenizer has {} ids but the model's vocab_size is {}; raise model.vocab_size",
          tokenizer_.vocab_size(), vocab_size_));
    }
  }

  void read_documents(const DataSource& source, const std::vector<std::filesystem::path>& paths,
                      const DataFormat& format, double held_back, Corpus& train,
                      Corpus& val) const {
    check_tokenizer(source);
    std::vector<std::string> documents = fp8train::read_documents(paths, format, settings_.rules());
    size_t boundary = documents.size();
    const bool in_records = format.content == DataContent::documents;
    const bool separated = in_records || documents.size() > 1;
    if (held_back > 0 && in_records) {
      boundary =
          static_cast<size_t>(split_point(static_cast<int64_t>(documents.size()), held_back));
    } else if (held_back > 0) {
      boundary = split_text(documents, held_back);
    }
    with_prefix<DataError>(source.path + ": ", [&] {
      append_encoded(encode(documents, 0, boundary, separated), train);
      append_encoded(encode(documents, boundary, documents.size(), separated), val);
    });
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
      stores.push_back(format.open(path, vocab_size_, packs_documents()));
      total += stores.back()->size();
    }
    if (total == 0) {
      throw DataError(fmt::format("{}: holds no tokens", source.path));
    }
    int64_t left = split_point(total, held_back);
    for (const auto& store : stores) {
      const int64_t cut = between_documents(*store, std::min(left, store->size()));
      train.append(store, 0, cut);
      val.append(store, cut, store->size());
      left -= cut;
    }
  }

  bool packs_documents() const {
    return settings_.packing == Packing::documents || settings_.packing == Packing::none;
  }

  /// `cut`, or the last end of a document before it.
  static int64_t between_documents(const TokenStore& store, int64_t cut) {
    const DocumentTable* const table = store.documents();
    if (table == nullptr || cut == store.size()) {
      return cut;
    }
    const auto behind = std::upper_bound(table->ends.begin(), table->ends.end(), cut);
    return behind == table->ends.begin() ? 0 : *(behind - 1);
  }

  const DataSettings& settings_;
  const Tokenizer& tokenizer_;
  int64_t vocab_size_;
};

void check_settings(const DataSettings& settings) {
  if (settings.train.empty()) {
    throw KeyError("data.train", " names no source");
  }
  if (!(settings.val_fraction >= 0.0 && settings.val_fraction < 1.0)) {
    throw KeyError("data.val_fraction",
                   fmt::format(" is {}; it must be in [0, 1)", settings.val_fraction));
  }
  for (const DataSource& source : settings.val) {
    if (source.weight != 1.0) {
      throw KeyError("data.val", fmt::format(": {} has weight {}, but validation reads every token "
                                             "once; weights are for data.train",
                                             source.path, source.weight));
    }
  }
}

}  // namespace

void Corpus::append(std::shared_ptr<const TokenStore> store, int64_t begin, int64_t end) {
  check(begin >= 0 && begin <= end && end <= store->size(), "a corpus segment is out of range");
  if (begin < end) {
    if (const DocumentTable* const table = store->documents()) {
      has_ignored_tokens_ = has_ignored_tokens_ || !table->is_target.empty();
      int64_t from = 0;
      for (const int64_t to : table->ends) {
        if (from >= begin && to <= end) {
          documents_.push_back({size_ + from - begin, to - from});
        }
        from = to;
      }
    }
    segments_.push_back({std::move(store), begin, size_, end - begin});
    size_ += end - begin;
  }
}

bool Corpus::is_blend() const {
  return sources_.size() > 1 &&
         std::any_of(sources_.begin(), sources_.end(),
                     [](const CorpusSource& source) { return source.weight != 1.0; });
}

/// read(segment, offset within it, count, tokens before it).
template <typename Read>
void Corpus::for_each_part(int64_t offset, int64_t count, const Read& read) const {
  check(offset >= 0 && count >= 0 && offset <= size_ && count <= size_ - offset,
        "a corpus read is out of range");
  auto segment = std::upper_bound(
      segments_.begin(), segments_.end(), offset,
      [](int64_t position, const Segment& s) { return position < s.corpus_begin + s.count; });
  for (int64_t done = 0; done < count; ++segment) {
    const int64_t within = offset + done - segment->corpus_begin;
    const int64_t part = std::min(count - done, segment->count - within);
    read(*segment->store, segment->store_begin + within, part, done);
    done += part;
  }
}

void Corpus::read(int64_t offset, int64_t count, int32_t* to) const {
  for_each_part(offset, count,
                [&](const TokenStore& store, int64_t begin, int64_t part, int64_t done) {
                  store.read(begin, part, to + done);
                });
}

void Corpus::read_targets(int64_t offset, int64_t count, uint8_t* to) const {
  for_each_part(offset, count,
                [&](const TokenStore& store, int64_t begin, int64_t part, int64_t done) {
                  const DocumentTable* const table = store.documents();
                  const bool all = table == nullptr || table->is_target.empty();
                  for (int64_t i = 0; i < part; ++i) {
                    to[done + i] = all || table->is_target[static_cast<size_t>(begin + i)] ? 1 : 0;
                  }
                });
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
  if (!form_.is_windows() || form_.masks_documents) {
    hash = content_hash(&form_.packing, sizeof(form_.packing), hash);
    hash = content_hash(&form_.masks_documents, sizeof(form_.masks_documents), hash);
  }
  if (!form_.is_windows()) {
    hash = content_hash(documents_.data(), documents_.size() * sizeof(Document), hash);
  }
  return fmt::format("{:016x}", hash);
}

std::shared_ptr<const TokenStore> memory_store(const std::vector<int32_t>& tokens,
                                               DocumentTable documents) {
  const bool narrow = std::all_of(tokens.begin(), tokens.end(),
                                  [](int32_t id) { return id >= 0 && id < kU16Vocab; });
  if (narrow) {
    return std::make_shared<MemoryStore<uint16_t>>(tokens, std::move(documents));
  }
  return std::make_shared<MemoryStore<int32_t>>(tokens, std::move(documents));
}

CorpusSplits open_corpora(const DataSettings& settings, const Tokenizer& tokenizer,
                          int64_t vocab_size, const std::string& train_option) {
  check_settings(settings);
  const SourceReader reader(settings, tokenizer, vocab_size);
  const double held_back = settings.val.empty() ? settings.val_fraction : 0.0;
  CorpusSplits splits;
  keyed<DataError>(train_option, [&] {
    for (const DataSource& source : settings.train) {
      reader.read(source, DataSplit::train, held_back, splits.train, splits.val);
    }
  });
  keyed<DataError>("data.val", [&] {
    for (const DataSource& source : settings.val) {
      Corpus nothing;
      reader.read(source, DataSplit::val, 0.0, splits.val, nothing);
    }
  });
  if (splits.train.size() == 0 && splits.val.size() > 0 && held_back > 0) {
    throw KeyError("data.val_fraction",
                   fmt::format(" {} leaves no tokens to train on", settings.val_fraction));
  }
  if (splits.train.size() == 0) {
    throw Keyed<DataError>(train_option,
                           fmt::format(": {}: no tokens to train on", settings.train.front().path));
  }
  const SampleForm form = sample_form(settings, tokenizer, splits.train, splits.val);
  splits.train.set_form(form);
  splits.val.set_form(form);
  return splits;
}

std::unique_ptr<Tokenizer> make_tokenizer(const DataSettings& settings) {
  const auto text = [&] { return all_text(settings.train, settings.rules()); };
  return make_tokenizer(settings.tokenizer, [&] { return keyed<DataError>("data.train", text); });
}

}  // namespace fp8train
