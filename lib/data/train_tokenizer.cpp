#include "data/train_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/byte_stream.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "data/tokenizer.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/byte_level_file.h"
#include "data/tokenizers/pre_tokenizers.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

using tokenizers::ByteLevelFile;

constexpr int64_t kByteIds = 256;
constexpr int64_t kSpecialIds = 1;
constexpr int64_t kMostTrainedIds = int64_t{1} << 24;
constexpr int64_t kLeastCount = 2;  // a pair that occurs once is not worth a token
constexpr const char* kEndOfText = "<|endoftext|>";

const tokenizers::RankPattern& pattern_named(const std::string& name) {
  for (const tokenizers::RankPattern& pattern : tokenizers::rank_patterns()) {
    if (pattern.name == name) return pattern;
  }
  throw ConfigError(
      fmt::format("Unknown pattern '{}' (expected {})", name, tokenizers::rank_pattern_names()));
}

/// How often each piece occurs.
class PieceCounts {
 public:
  explicit PieceCounts(const tokenizers::RankPattern& pattern)
      : stages_(tokenizers::JsonPart(
            nlohmann::json(tokenizers::byte_level_pre_tokenizer(pattern.expression)),
            "pre_tokenizer")) {}

  void add(std::string_view text) {
    if (text.empty()) return;
    const std::string replaced = is_utf8(text) ? "" : tokenizers::well_formed(text);
    stages_.split({replaced.empty() ? text : std::string_view(replaced), true},
                  [this](tokenizers::Piece piece) {
                    key_.assign(piece.text);
                    ++counts_[key_];
                  });
  }

  /// In the order of the pieces' bytes: what follows does not depend on a hash.
  std::vector<std::pair<std::string, int64_t>> sorted() const {
    std::vector<std::pair<std::string, int64_t>> pieces(counts_.begin(), counts_.end());
    std::sort(pieces.begin(), pieces.end());
    return pieces;
  }

 private:
  tokenizers::PreTokenizers stages_;
  std::string key_;
  std::unordered_map<std::string, int64_t> counts_;
};

/// Where a part of a text may end: behind the last line end, with the line in front of it.
size_t end_of_lines(std::string_view text) {
  const size_t line = text.rfind('\n');
  return line == std::string_view::npos ? 0 : line + 1;
}

void count_file(const std::filesystem::path& path, const DataFormat& format,
                const RecordRules& rules, PieceCounts& counts) {
  constexpr size_t kReadBytesAtATime = 4U << 20;
  if (format.content != DataContent::text) {
    format.for_each_document(path, rules, [&](const std::string& text) { counts.add(text); });
    return;
  }
  ByteStream file(path);
  std::string text;
  while (file.append_to(text, kReadBytesAtATime)) {
    const size_t end = end_of_lines(text);
    counts.add(std::string_view(text).substr(0, end));
    text.erase(0, end);
  }
  counts.add(text);
}

/// Pairs of neighbours, counted once, then updated merge by merge.
class BpeTrainer {
 public:
  explicit BpeTrainer(const std::vector<std::pair<std::string, int64_t>>& pieces);

  /// The most frequent pair becomes the token `id`; false where none occurs often enough.
  bool merge_best(int32_t id, std::pair<int32_t, int32_t>& merged);

  /// Ids of bytes, in the order of their characters.
  static std::array<int32_t, kByteIds> ids_of_bytes();

 private:
  using Pair = uint64_t;
  struct Word {
    std::vector<int32_t> ids;
    int64_t count;
    int32_t last_merge = -1;
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  struct Occurrences {
    int64_t count = 0;
    std::vector<uint32_t> words;  ///< that have had the pair
  };

  static Pair pair_of(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  void count_pairs(const Word& word, int64_t sign);
  void merge_in(Word& word, Pair pair, int32_t id);

  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<Pair> grown_;
};

std::array<int32_t, kByteIds> BpeTrainer::ids_of_bytes() {
  std::array<std::pair<char32_t, size_t>, kByteIds> order;
  for (size_t byte = 0; byte < order.size(); ++byte) {
    order[byte] = {tokenizers::byte_character(static_cast<uint8_t>(byte)), byte};
  }
  std::sort(order.begin(), order.end());
  std::array<int32_t, kByteIds> ids = {};
  for (size_t i = 0; i < order.size(); ++i) {
    ids[order[i].second] = static_cast<int32_t>(kSpecialIds + static_cast<int64_t>(i));
  }
  return ids;
}

BpeTrainer::BpeTrainer(const std::vector<std::pair<std::string, int64_t>>& pieces) {
  const std::array<int32_t, kByteIds> bytes = ids_of_bytes();
  for (const auto& [text, count] : pieces) {
    Word word = {{}, count};
    for (const char c : text) word.ids.push_back(bytes[static_cast<uint8_t>(c)]);
    const auto index = static_cast<uint32_t>(words_.size());
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      Occurrences& found = pairs_[pair_of(word.ids[i], word.ids[i + 1])];
      found.count += count;
      if (found.words.empty() || found.words.back() != index) found.words.push_back(index);
    }
    words_.push_back(std::move(word));
  }
  for (const auto& [pair, found] : pairs_) heap_.push({found.count, pair});
}

void BpeTrainer::merge_in(Word& word, Pair pair, int32_t id) {
  const auto index = static_cast<uint32_t>(&word - words_.data());
  for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
    pairs_[pair_of(word.ids[i], word.ids[i + 1])].count -= word.count;
  }
  size_t to = 0;
  for (size_t from = 0; from < word.ids.size(); ++from) {
    const bool merges =
        from + 1 < word.ids.size() && pair_of(word.ids[from], word.ids[from + 1]) == pair;
    word.ids[to++] = merges ? id : word.ids[from];
    from += merges ? 1 : 0;
  }
  word.ids.resize(to);
  for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
    const Pair now = pair_of(word.ids[i], word.ids[i + 1]);
    Occurrences& found = pairs_[now];
    found.count += word.count;
    if (word.ids[i] != id && word.ids[i + 1] != id) continue;
    if (found.words.empty() || found.words.back() != index) found.words.push_back(index);
    grown_.push_back(now);
  }
}

bool BpeTrainer::merge_best(int32_t id, std::pair<int32_t, int32_t>& merged) {
  while (!heap_.empty()) {
    const Candidate best = heap_.top();
    heap_.pop();
    Occurrences& found = pairs_[best.pair];
    if (found.count != best.count) {  // an older count
      if (found.count > 0) heap_.push({found.count, best.pair});
      continue;
    }
    if (best.count < kLeastCount) return false;
    merged = {static_cast<int32_t>(best.pair >> 32), static_cast<int32_t>(best.pair & 0xFFFFFFFFU)};
    const std::vector<uint32_t> words = std::move(found.words);
    grown_.clear();
    for (const uint32_t index : words) {
      if (std::exchange(words_[index].last_merge, id) != id) {
        merge_in(words_[index], best.pair, id);
      }
    }
    pairs_.erase(best.pair);
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const Pair pair : grown_) {
      if (pair != best.pair) heap_.push({pairs_[pair].count, pair});
    }
    return true;
  }
  return false;
}

void check_training(const TokenizerTraining& settings) {
  if (settings.inputs.empty()) throw ConfigError("no input files are named");
  if (settings.vocab_size < kByteIds + kSpecialIds || settings.vocab_size > kMostTrainedIds) {
    throw ConfigError(fmt::format("--vocab-size is {}; it must be in [{}, {}]", settings.vocab_size,
                                  kByteIds + kSpecialIds, kMostTrainedIds));
  }
  create_folder(settings.out);
  if (std::filesystem::exists(settings.out / "tokenizer.json")) {
    throw ConfigError(fmt::format("{} already holds a tokenizer.json; choose another folder",
                                  settings.out.string()));
  }
}

PieceCounts count_inputs(const TokenizerTraining& settings,
                         const tokenizers::RankPattern& pattern) {
  PieceCounts counts(pattern);
  for (const std::string& input : settings.inputs) {
    for (const auto& path : expand_path(input)) {
      const DataFormat& format = text_format_of(path, settings.format, "train a tokenizer");
      count_file(path, format, settings.rules, counts);
    }
  }
  return counts;
}

}  // namespace

TokenizerReport train_tokenizer(const TokenizerTraining& settings) {
  const tokenizers::RankPattern& pattern = pattern_named(settings.pattern);
  check_training(settings);
  const auto pieces = count_inputs(settings, pattern).sorted();
  if (pieces.empty()) throw DataError(settings.inputs.front() + ": no text to train on");
  BpeTrainer trainer(pieces);
  ByteLevelFile file;
  file.expression = pattern.expression;
  file.specials = {{kEndOfText, 0}};
  std::vector<std::string> texts(static_cast<size_t>(kByteIds + kSpecialIds));
  const auto bytes = BpeTrainer::ids_of_bytes();
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    texts[static_cast<size_t>(bytes[byte])] = std::string(1, static_cast<char>(byte));
  }
  std::pair<int32_t, int32_t> merged;
  while (static_cast<int64_t>(texts.size()) < settings.vocab_size &&
         trainer.merge_best(static_cast<int32_t>(texts.size()), merged)) {
    const std::string left = texts[static_cast<size_t>(merged.first)];
    const std::string right = texts[static_cast<size_t>(merged.second)];
    file.merges.emplace_back(left, right);
    texts.push_back(left + right);
  }
  for (size_t id = kSpecialIds; id < texts.size(); ++id) {
    file.tokens.emplace_back(texts[id], static_cast<int32_t>(id));
  }
  const auto tokenizer = tokenizer_from_json(byte_level_json(file), "the trained tokenizer");
  TokenizerReport report;
  report.vocab_size = tokenizer->vocab_size();
  report.words = static_cast<int64_t>(pieces.size());
  for (const TokenizerFile& written : tokenizer->files()) {
    write_file_atomically(settings.out / written.name, written.text);
    report.files.push_back(written.name);
  }
  return report;
}

}  // namespace fp8train
