// The tokenizer of llama2.c. The result of encode() is that of run.c's loop, "merge the
// best-scoring adjacent pair, the leftmost of equals, until none is left", reached in O(n log n) by
// a heap over a linked list instead of O(n^2).

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "data/input_file.h"
#include "data/tokenizers/own_format.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr int32_t kBos = 1;
constexpr int32_t kEos = 2;
constexpr int32_t kFirstByte = 3;
constexpr int32_t kBytes = 256;
constexpr float kLowestScore = -1e10F;  // run.c: pieces that score no higher are never merged
constexpr size_t kMaxCodePoint = 4;

std::string byte_piece(int32_t byte) {
  return fmt::format("<0x{:02X}>", byte);
}

class Llama2cTokenizer final : public Tokenizer {
 public:
  explicit Llama2cTokenizer(std::vector<tokenizers::BpePiece> pieces) : pieces_(std::move(pieces)) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      ids_.emplace(pieces_[i].text, static_cast<int32_t>(i));
    }
  }

  std::string_view type() const override { return "llama2c-bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t bos_id() const override { return kBos; }
  int32_t eos_id() const override { return kEos; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string to_json() const override;

 private:
  struct Merge {
    float score;
    size_t left;
    size_t right;
    int32_t left_id;
    int32_t right_id;
    int32_t merged;
    // Top of the heap: the highest score, then the leftmost place.
    bool operator<(const Merge& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  std::optional<int32_t> find(const std::string& piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::string& text_of(int32_t id) const { return pieces_[static_cast<size_t>(id)].text; }
  std::vector<int32_t> initial_ids(std::string_view text) const;
  void merge(std::vector<int32_t>& ids) const;

  std::vector<tokenizers::BpePiece> pieces_;
  std::unordered_map<std::string, int32_t> ids_;
};

/// One id per code point in the vocabulary, else one per byte; a space first ("dummy prefix").
std::vector<int32_t> Llama2cTokenizer::initial_ids(std::string_view text) const {
  std::vector<int32_t> ids;
  if (text.empty()) {
    return ids;
  }
  ids.reserve(text.size() + 1);
  ids.push_back(find(" ").value_or(kFirstByte + ' '));
  for (size_t begin = 0; begin < text.size();) {
    size_t length = 1;
    while (begin + length < text.size() && length < kMaxCodePoint &&
           is_continuation(text[begin + length])) {
      ++length;
    }
    const std::string_view character = text.substr(begin, length);
    if (const auto id = find(std::string(character))) {
      ids.push_back(*id);
    } else {
      for (const char c : character) {
        ids.push_back(kFirstByte + static_cast<uint8_t>(c));
      }
    }
    begin += length;
  }
  return ids;
}

void Llama2cTokenizer::merge(std::vector<int32_t>& ids) const {
  constexpr size_t kNone = static_cast<size_t>(-1);
  constexpr int32_t kMergedAway = -1;
  const size_t count = ids.size();
  std::vector<size_t> next(count);
  std::vector<size_t> previous(count);
  for (size_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  std::priority_queue<Merge> heap;
  const auto offer = [&](size_t left, size_t right) {
    if (left == kNone || right == kNone) return;
    const auto merged = find(text_of(ids[left]) + text_of(ids[right]));
    if (!merged) return;
    const float score = pieces_[static_cast<size_t>(*merged)].score;
    if (score > kLowestScore) {
      heap.push({score, left, right, ids[left], ids[right], *merged});
    }
  };
  for (size_t i = 0; i + 1 < count; ++i) {
    offer(i, i + 1);
  }
  while (!heap.empty()) {
    const Merge best = heap.top();
    heap.pop();
    const bool stale = ids[best.left] != best.left_id || ids[best.right] != best.right_id ||
                       next[best.left] != best.right;
    if (stale) continue;
    ids[best.left] = best.merged;
    ids[best.right] = kMergedAway;
    next[best.left] = next[best.right];
    if (next[best.left] != kNone) {
      previous[next[best.left]] = best.left;
    }
    offer(previous[best.left], best.left);
    offer(best.left, next[best.left]);
  }
  std::erase(ids, kMergedAway);
}

std::vector<int32_t> Llama2cTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids = initial_ids(text);
  merge(ids);
  return ids;
}

std::string Llama2cTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  int32_t last = -1;
  for (const int32_t id : ids) {
    tokenizers::require_id(id, vocab_size());
    if (id >= kFirstByte && id < kFirstByte + kBytes) {
      text.push_back(static_cast<char>(id - kFirstByte));
    } else if (id != kBos && id != kEos) {
      const std::string& piece = text_of(id);
      const bool drop_space = last == kBos && !piece.empty() && piece.front() == ' ';
      text.append(piece, drop_space ? 1 : 0);
    }
    last = id;
  }
  return text;
}

std::string Llama2cTokenizer::to_json() const {
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const tokenizers::BpePiece& piece : pieces_) {
    pieces.push_back({piece.text, static_cast<double>(piece.score)});
  }
  const nlohmann::ordered_json document = {{"format", tokenizers::kOwnFormat},
                                           {"version", tokenizers::kOwnVersion},
                                           {"type", type()},
                                           {"pieces", std::move(pieces)}};
  return document.dump() + "\n";
}

uint32_t word_at(const std::string& bytes, size_t position) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + position, sizeof(word));
  return word;
}

}  // namespace

std::unique_ptr<Tokenizer> read_llama2c_tokenizer(const std::filesystem::path& path) {
  constexpr uint64_t kMaxFile = 64ULL << 20;
  constexpr size_t kWord = sizeof(uint32_t);
  const InputFile file(path);
  if (file.size() < kWord || file.size() > kMaxFile) {
    throw DataError(
        fmt::format("{}: {} bytes cannot be a llama2.c tokenizer", path.string(), file.size()));
  }
  std::string bytes(file.size(), '\0');
  file.read(0, bytes.data(), bytes.size());
  const uint32_t longest = word_at(bytes, 0);
  std::vector<tokenizers::BpePiece> pieces;
  for (size_t position = kWord; position < bytes.size();) {
    const size_t left = bytes.size() - position;
    const uint32_t length = left >= 2 * kWord ? word_at(bytes, position + kWord) : 0;
    if (left < 2 * kWord || length > longest || length > left - 2 * kWord) {
      throw DataError(fmt::format(
          "{}: token {} at byte {} is damaged or cut off (length {}, longest {}, {} bytes left)",
          path.string(), pieces.size(), position, length, longest, left));
    }
    float score = 0;
    std::memcpy(&score, bytes.data() + position, sizeof(score));
    pieces.push_back({bytes.substr(position + 2 * kWord, length), score});
    position += 2 * kWord + length;
  }
  return tokenizers::bpe_tokenizer_from(std::move(pieces), path.string());
}

namespace tokenizers {

std::unique_ptr<Tokenizer> bpe_tokenizer_from(std::vector<BpePiece> pieces,
                                              const std::string& where) {
  if (pieces.size() < static_cast<size_t>(kFirstByte) + kBytes) {
    throw DataError(
        fmt::format("{}: {} tokens; a llama2.c tokenizer has at least {} (unknown, BOS, "
                    "EOS and 256 bytes)",
                    where, pieces.size(), kFirstByte + kBytes));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!std::isfinite(pieces[i].score) || !is_utf8(pieces[i].text)) {
      throw DataError(
          fmt::format("{}: token {} ('{}') has a score that is not finite or a text "
                      "that is not UTF-8",
                      where, i, printable(pieces[i].text)));
    }
  }
  for (int32_t byte = 0; byte < kBytes; ++byte) {
    const std::string& text = pieces[static_cast<size_t>(kFirstByte) + byte].text;
    if (text != byte_piece(byte)) {
      throw DataError(fmt::format("{}: token {} should be the byte {} but is '{}'", where,
                                  kFirstByte + byte, byte_piece(byte), printable(text)));
    }
  }
  return std::make_unique<Llama2cTokenizer>(std::move(pieces));
}

}  // namespace tokenizers
}  // namespace fp8train
