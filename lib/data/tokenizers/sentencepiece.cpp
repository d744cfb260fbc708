// tokenizer.model of sentencepiece (google/sentencepiece), through its library.

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/tokenizers/own_format.h"
#include "data/tokenizers/registry.h"
#include "data/tokenizers/token_table.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kMostModelBytes = 256U << 20;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
constexpr std::string_view kUnknownText = " \xE2\x81\x87 ";  // sentencepiece's unk_surface

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, std::string config, const std::string& where)
      : model_(std::move(model)), config_(std::move(config)) {
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

  std::string_view type() const override { return "sentencepiece"; }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t bos_id() const override { return processor_.bos_id(); }
  int32_t eos_id() const override { return processor_.eos_id(); }
  std::string to_json() const override { return model_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    require(processor_.Encode(is_utf8(text) ? std::string(text) : well_formed(text), &ids));
    return {ids.begin(), ids.end()};
  }

  int32_t token_id(std::string_view text) const override {
    const int id = processor_.PieceToId(std::string(text));
    return processor_.IsControl(id) ? id : -1;
  }

  /// Bytes that are not UTF-8 stay as they are, unlike in the library.
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool is_first = has_prefix_;
    for (const int32_t id : ids) {
      require_id(id, vocab_size());
      if (processor_.IsControl(id)) continue;
      const std::string& piece = processor_.IdToPiece(id);
      if (processor_.IsByte(id)) {
        text += static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
      } else if (processor_.IsUnknown(id)) {
        text += kUnknownText;
      } else {
        append_piece(text, piece, is_first);
      }
      is_first = is_first && drops_leading_ && text.empty();
    }
    return text;
  }

  std::vector<TokenizerFile> files() const override {
    return {{"tokenizer.model", model_}, {"tokenizer_config.json", config_}};
  }

 private:
  static void require(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw DataError(fmt::format("sentencepiece: {}", status.error_message()));
  }

  static void append_piece(std::string& text, std::string_view piece, bool drops_space) {
    if (drops_space && piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
    size_t done = 0;
    for (size_t at = piece.find(kSpaceMark); at != std::string_view::npos;
         at = piece.find(kSpaceMark, done)) {
      text.append(piece.substr(done, at - done)).append(" ");
      done = at + kSpaceMark.size();
    }
    text += piece.substr(done);
  }

  std::string model_;
  std::string config_;
  sentencepiece::SentencePieceProcessor processor_;
  bool has_prefix_ = false;     ///< a space is put in front of a text
  bool drops_leading_ = false;  ///< all other spaces there are removed
};

}  // namespace

bool is_sentencepiece(const TokenizerProbe& probe) {
  // A ModelProto begins with field 1, the pieces.
  return probe.path.extension() == ".model" && probe.head.starts_with('\n');
}

std::unique_ptr<Tokenizer> open_sentencepiece(const TokenizerProbe& probe) {
  const std::filesystem::path config_path = probe.path.parent_path() / "tokenizer_config.json";
  const nlohmann::ordered_json config = {{"tokenizer_class", "LlamaTokenizer"}, {"legacy", true}};
  return std::make_unique<SentencePieceTokenizer>(read_text_file(probe.path, kMostModelBytes),
                                                  std::filesystem::is_regular_file(config_path)
                                                      ? read_text_file(config_path, kMostModelBytes)
                                                      : config.dump(2) + "\n",
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
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    table.tokens.push_back(processor.IdToPiece(id));
    table.scores.push_back(processor.GetScore(id));
    table.types.push_back(processor.IsUnknown(id)   ? TokenType::unknown
                          : processor.IsControl(id) ? TokenType::control
                          : processor.IsUnused(id)  ? TokenType::unused
                          : processor.IsByte(id)    ? TokenType::byte
                                                    : TokenType::normal);
  }
  table.unknown = processor.unk_id();
  std::vector<std::string> pieces;
  table.adds_space = processor.Encode("a", &pieces).ok() && !pieces.empty() &&
                     pieces.front().starts_with(kSpaceMark);
  return table;
}

}  // namespace fp8train::tokenizers
