#pragma once
// The kinds of tokenizers: one file of this folder and one line of the table in registry.cpp each.

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace fp8train::tokenizers {

/// The facts of a file by which its kind is recognized.
struct TokenizerProbe {
  std::filesystem::path path;
  std::string head;     ///< its first bytes, at most 4096
  std::string pattern;  ///< as in open_tokenizer
};

/// Returns the names of the files that a model folder may hold a tokenizer in, in the order in
/// which they are looked for.
std::span<const char* const> tokenizer_file_names();
/// Whether `folder` has one of these files.
bool has_tokenizer(const std::filesystem::path& folder);

/// Returns the object in tokenizer_config.json of a folder, empty where there is no such file.
/// Throws DataError for a damaged one.
nlohmann::json tokenizer_config(const std::filesystem::path& folder);

/// Opens tokenizer.json of Hugging Face, with tokenizer_config.json of the same folder if there is
/// one. Throws DataError.
std::unique_ptr<Tokenizer> open_tokenizer_json(const TokenizerProbe& probe);

/// Whether a file is a model of sentencepiece: NAME.model that begins as one does.
bool is_sentencepiece(const TokenizerProbe& probe);
/// Opens a model of sentencepiece. Throws DataError.
std::unique_ptr<Tokenizer> open_sentencepiece(const TokenizerProbe& probe);

/// Whether a file has the ranks of tiktoken: NAME.tiktoken or NAME.model with a line for each
/// token, its bytes in base64 and its rank.
bool is_tiktoken(const TokenizerProbe& probe);
/// Opens a file of ranks of tiktoken. Throws DataError.
std::unique_ptr<Tokenizer> open_tiktoken(const TokenizerProbe& probe);

}  // namespace fp8train::tokenizers
