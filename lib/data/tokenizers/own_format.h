#pragma once
// tokenizer.json of the kinds that are this program's own. Those of bytes and of characters are
// files of Hugging Face's tokenizers, so that transformers opens them; a file that these kinds
// write is read as that kind. The others, and all in earlier versions, have a format of their own:
// {"format": "fp8train-tokenizer", "version": 1, "type": ...}.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace fp8train::tokenizers {

/// Returns {"format": ..., "version": ..., "type": TYPE}.
nlohmann::ordered_json own_header(TokenizerType type);

/// Returns a document of Hugging Face's tokenizers with a BPE vocabulary without merges, and
/// nothing else.
nlohmann::ordered_json transformers_document(nlohmann::ordered_json vocabulary);

/// Whether a document has the format of this program.
bool is_own(const nlohmann::json& document);

/// Returns the byte or char tokenizer whose file `document` is, or null.
std::unique_ptr<Tokenizer> recognize_own(const nlohmann::json& document);

/// Reads a document of this program's own format. Throws DataError for a kind or version that is
/// not known, and nlohmann's exceptions for missing fields.
std::unique_ptr<Tokenizer> read_own(const nlohmann::json& own, const std::string& where);

/// Returns tokenizer.json and a tokenizer_config.json for transformers' PreTrainedTokenizerFast.
/// Names of tokens may be empty: they are left out.
std::vector<TokenizerFile> transformers_files(std::string tokenizer_json, const std::string& bos,
                                              const std::string& eos);

/// Whether id < vocab_size: a model's vocabulary may be larger than the tokenizer's, and such ids
/// have no text. Throws DataError for a negative one.
bool has_text(int32_t id, int64_t vocab_size);

}  // namespace fp8train::tokenizers
