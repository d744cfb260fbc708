// tokenizer.model of sentencepiece (google/sentencepiece), through its library.

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"
#include "base/text.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/own_format.h"
#include "data/tokenizers/pre_tokenizers.h"
#include "data/tokenizers/registry.h"
#include "data/tokenizers/token_table.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kMostModelBytes = 256U << 20;
constexpr std::string_view kUnknownText = " \xE2\x81\x87 ";  // sentencepiece's unk_surface

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& where) : model_(std::move(model)) {
    const auto status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok()) {
      throw DataError(
          fmt::format("{}: not a model of sentencepiece: {}", where, status.error_message()));
    }
    std::vector<std::string> pieces;
    require(processor_.Encode("a", &pieces));
    has_prefix_ = !pieces.empty() && pieces.front().starts_with(kSpaceMark);
    std::vector<std::string> behind_spaces;
    require(processor_.Encode("  a", &behind_spaces));
    drops_leading_ = has_prefix_ && behind_spaces == pieces;
  }

  TokenizerType type() const override { return TokenizerType::sentencepiece; }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t bos_id() const override { return processor_.bos_id(); }
  int32_t eos_id() const override { return processor_.eos_id(); }
  std::string to_json() const override { return model_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    require(processor_.Encode(is_utf8(text) ? std::string(text) : well_formed(text), &ids));
    return {ids.begin(), ids.end()};
  }

  std::vector<Added> added_tokens() const override {
    std::vector<Added> tokens;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id)) tokens.push_back({processor_.IdToPiece(id), id, true});
    }
    return tokens;
  }

  /// Bytes that are not UTF-8 stay as they are, unlike in the library.
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool is_first = has_prefix_;
    for (const int32_t id : ids) {
      if (!has_text(id, vocab_size()) || processor_.IsControl(id)) continue;
      std::string_view piece = processor_.IdToPiece(id);
      if (processor_.IsByte(id)) {
        text += static_cast<char>(byte_of_token(piece).value_or(0));
      } else if (processor_.IsUnknown(id)) {
        text += kUnknownText;
      } else {
        if (is_first && piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
        text += replaced(piece, kSpaceMark, " ");
      }
      is_first = is_first && drops_leading_ && text.empty();
    }
    return text;
  }

  std::vector<TokenizerFile> own_files() const override {
    const nlohmann::ordered_json config = {{"tokenizer_class", "LlamaTokenizer"}, {"legacy", true}};
    return {{"tokenizer.model", model_}, {"tokenizer_config.json", config.dump(2) + "\n"}};
  }

 private:
  static void require(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw DataError(fmt::format("sentencepiece: {}", status.error_message()));
  }

  std::string model_;
  sentencepiece::SentencePieceProcessor processor_;
  bool has_prefix_ = false;     ///< a space is put in front of a text
  bool drops_leading_ = false;  ///< all other spaces there are removed
};

/// Takes fields off a message of protobuf (protobuf.dev/programming-guides/encoding).
struct MessageReader {
  std::string_view rest;
  uint64_t field = 0;
  uint64_t number = 0;     ///< value of the field; 0 where it is not a number
  std::string_view bytes;  ///< the same of texts and messages

  /// False at the end. Throws DataError.
  bool next() {
    if (rest.empty()) return false;
    const uint64_t key = varint();
    field = key >> 3;
    number = 0;
    bytes = {};
    switch (key & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        bytes = take(sizeof(uint64_t));
        break;
      case 2:
        bytes = take(varint());
        break;
      case 5:
        bytes = take(sizeof(uint32_t));
        break;
      default:
        throw DataError("a model of sentencepiece has a field of an unknown kind");
    }
    return true;
  }

  std::string_view take(uint64_t count) {
    if (count > rest.size()) throw DataError("a model of sentencepiece ends within a field");
    const std::string_view taken = rest.substr(0, count);
    rest.remove_prefix(count);
    return taken;
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1).front());
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw DataError("a model of sentencepiece has a number of more than 64 bits");
  }
};

/// Facts of a model that the library does not report (google/sentencepiece:
/// src/sentencepiece_model.proto).
struct ModelFacts {
  std::vector<bool> user_defined;  ///< by piece
  bool normalizes = false;
  bool removes_spaces = true;  ///< behind a space and at the ends
};

constexpr uint64_t kPieces = 1, kPieceType = 3;  // of ModelProto, of SentencePiece
constexpr uint64_t kNormalizer = 3, kCharsmap = 2, kRemoveSpaces = 4;  // of NormalizerSpec

ModelFacts facts_of_model(std::string_view model) {
  ModelFacts facts;
  for (MessageReader field{.rest = model}; field.next();) {
    if (field.field == kPieces) {
      bool user_defined = false;
      for (MessageReader piece{.rest = field.bytes}; piece.next();) {
        if (piece.field == kPieceType) {
          user_defined = piece.number == static_cast<uint64_t>(TokenType::user_defined);
        }
      }
      facts.user_defined.push_back(user_defined);
    } else if (field.field == kNormalizer) {
      for (MessageReader spec{.rest = field.bytes}; spec.next();) {
        facts.normalizes = facts.normalizes || (spec.field == kCharsmap && !spec.bytes.empty());
        if (spec.field == kRemoveSpaces) facts.removes_spaces = spec.number != 0;
      }
    }
  }
  return facts;
}

}  // namespace

bool is_sentencepiece(const TokenizerProbe& probe) {
  // A ModelProto begins with field 1, the pieces.
  return probe.path.extension() == ".model" && probe.head.starts_with('\n');
}

std::unique_ptr<Tokenizer> open_sentencepiece(const TokenizerProbe& probe) {
  return std::make_unique<SentencePieceTokenizer>(read_text_file(probe.path, kMostModelBytes),
                                                  probe.path.string());
}

TokenTable sentencepiece_table(const std::string& model) {
  sentencepiece::SentencePieceProcessor processor;
  if (!processor.LoadFromSerializedProto(model).ok()) {
    throw DataError("not a model of sentencepiece");
  }
  TokenTable table;
  table.kind = TokenTableKind::scored;
  table.pre = "default";
  ModelFacts facts = facts_of_model(model);
  facts.user_defined.resize(static_cast<size_t>(processor.GetPieceSize()));
  bool has_user_defined = false;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const bool is_user_defined = facts.user_defined[static_cast<size_t>(id)];
    has_user_defined = has_user_defined || is_user_defined;
    const std::string& piece = processor.IdToPiece(id);
    // llama.cpp looks for user-defined tokens before it marks spaces.
    table.tokens.push_back(is_user_defined ? replaced(piece, kSpaceMark, " ") : piece);
    table.scores.push_back(processor.GetScore(id));
    table.types.push_back(processor.IsUnknown(id)   ? TokenType::unknown
                          : processor.IsControl(id) ? TokenType::control
                          : processor.IsUnused(id)  ? TokenType::unused
                          : processor.IsByte(id)    ? TokenType::byte
                          : is_user_defined         ? TokenType::user_defined
                                                    : TokenType::normal);
  }
  table.unknown = processor.unk_id();
  std::vector<std::string> pieces;
  table.adds_space = processor.Encode("a", &pieces).ok() && !pieces.empty() &&
                     pieces.front().starts_with(kSpaceMark);
  if (facts.normalizes) {
    table.differences.emplace_back("does not normalize texts");
  }
  if (facts.removes_spaces) {
    table.differences.emplace_back("leaves several spaces in a row, and spaces at the ends");
  }
  if (has_user_defined && table.adds_space) {
    table.differences.emplace_back(
        "puts a space behind user-defined pieces, and none in front of one");
  }
  return table;
}

}  // namespace fp8train::tokenizers
