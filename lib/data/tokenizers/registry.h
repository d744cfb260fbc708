#pragma once
// The kinds of tokenizers: one file of this folder and one line of the table in registry.cpp each.

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace fp8train::tokenizers {

/// What is known of a file before its kind is known.
struct TokenizerProbe {
  std::filesystem::path path;
  std::string head;     ///< its first bytes, at most 4096
  std::string pattern;  ///< as in open_tokenizer
};

struct TokenizerKind {
  std::string_view files;  ///< what such a file is called, for messages
  bool (*recognizes)(const TokenizerProbe& probe);
  std::unique_ptr<Tokenizer> (*open)(const TokenizerProbe& probe);
  bool takes_pattern = false;
};

std::span<const TokenizerKind> tokenizer_kinds();

/// Names of the files that a model folder may hold a tokenizer in, in the order in which they are
/// looked for.
std::span<const char* const> tokenizer_file_names();
bool has_tokenizer(const std::filesystem::path& folder);

/// Hugging Face's tokenizer.json, with tokenizer_config.json of the same folder.
std::unique_ptr<Tokenizer> open_tokenizer_json(const TokenizerProbe& probe);

/// sentencepiece's tokenizer.model.
bool is_sentencepiece(const TokenizerProbe& probe);
std::unique_ptr<Tokenizer> open_sentencepiece(const TokenizerProbe& probe);

/// tiktoken's files of ranks: a line for each token, its bytes in base64 and its rank.
bool is_tiktoken(const TokenizerProbe& probe);
std::unique_ptr<Tokenizer> open_tiktoken(const TokenizerProbe& probe);

}  // namespace fp8train::tokenizers
