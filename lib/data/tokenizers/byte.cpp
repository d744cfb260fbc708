// The tokenizer of bytes.

#include <nlohmann/json.hpp>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/own_format.h"

namespace fp8train {
namespace {

constexpr int32_t kByteBos = 256;
constexpr int32_t kByteEos = 257;
constexpr int64_t kByteVocab = 258;
constexpr const char* kReservedToken = "<|reserved|>";
constexpr const char* kEosToken = "<|endoftext|>";

class ByteTokenizer final : public Tokenizer {
 public:
  TokenizerType type() const override { return TokenizerType::byte; }
  int64_t vocab_size() const override { return kByteVocab; }
  int32_t eos_id() const override { return kByteEos; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) {
      ids.push_back(static_cast<uint8_t>(c));
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      tokenizers::require_id(id, kByteVocab);
      if (id < kByteBos) {
        text.push_back(static_cast<char>(id));
      }
    }
    return text;
  }

  size_t last_cut(std::string_view text) const override { return text.size(); }

  /// A byte-level vocabulary without merges.
  std::string to_json() const override {
    nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
    for (int32_t byte = 0; byte < kByteBos; ++byte) {
      vocabulary[tokenizers::spelled(std::string(1, static_cast<char>(byte)))] = byte;
    }
    const nlohmann::ordered_json level = {{"type", "ByteLevel"},
                                          {"add_prefix_space", false},
                                          {"trim_offsets", true},
                                          {"use_regex", false}};
    nlohmann::ordered_json document = tokenizers::transformers_document(std::move(vocabulary));
    document["added_tokens"] = {special(kByteBos, kReservedToken), special(kByteEos, kEosToken)};
    document["pre_tokenizer"] = level;
    document["decoder"] = level;
    return document.dump(2) + "\n";
  }

  std::vector<TokenizerFile> own_files() const override {
    return tokenizers::transformers_files(to_json(), "", kEosToken);
  }

 private:
  static nlohmann::ordered_json special(int32_t id, const char* content) {
    return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
            {"rstrip", false}, {"normalized", false}, {"special", true}};
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace fp8train
