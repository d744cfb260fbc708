// The tokenizer of llama2.c. The result of encode() is that of run.c's loop, "merge the
// best-scoring adjacent pair, the leftmost of equals, until none is left".

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/input_file.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/merge_pairs.h"
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

class Llama2cTokenizer final : public Tokenizer {
 public:
  explicit Llama2cTokenizer(std::vector<tokenizers::BpePiece> pieces) : pieces_(std::move(pieces)) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      ids_.emplace(pieces_[i].text, static_cast<int32_t>(i));
    }
  }

  TokenizerType type() const override { return TokenizerType::llama2c; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t bos_id() const override { return kBos; }
  int32_t eos_id() const override { return kEos; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string to_json() const override;

 private:
  std::optional<int32_t> find(const std::string& piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::string& text_of(int32_t id) const { return pieces_[static_cast<size_t>(id)].text; }
  std::vector<int32_t> initial_ids(std::string_view text) const;

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

std::vector<int32_t> Llama2cTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids = initial_ids(text);
  using Merge = tokenizers::PairMerge<float>;
  tokenizers::merge_pairs<float>(ids, [this](int32_t left, int32_t right) -> std::optional<Merge> {
    const auto merged = find(text_of(left) + text_of(right));
    const float score = merged ? pieces_[static_cast<size_t>(*merged)].score : kLowestScore;
    return score > kLowestScore ? std::optional(Merge{-score, *merged}) : std::nullopt;
  });
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
                                           {"type", name_of(type())},
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
    const std::string expected = tokenizers::byte_token(static_cast<uint8_t>(byte));
    if (text != expected) {
      throw DataError(fmt::format("{}: token {} should be the byte {} but is '{}'", where,
                                  kFirstByte + byte, expected, printable(text)));
    }
  }
  return std::make_unique<Llama2cTokenizer>(std::move(pieces));
}

}  // namespace tokenizers
}  // namespace fp8train
