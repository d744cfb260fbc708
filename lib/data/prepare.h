#pragma once
// Turns text and JSON-lines files into llm.c token shards once, so that training need not tokenize.
// The result is a function of the inputs and the settings alone. Holds one shard of tokens in
// memory.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fp8train {

struct PrepareSettings {
  std::vector<std::string> inputs;  ///< files or globs, text or JSON lines
  std::string format = "auto";      ///< auto | text | jsonl
  std::filesystem::path out;        ///< folder; created; must not hold shards already
  std::string tokenizer = "byte";   ///< as in DataSettings
  std::string text_key = "text";
  double val_fraction =
      0.0;  ///< last part of each input: of its text, or of its documents for JSON lines
  int64_t shard_tokens = 100'000'000;
  bool append_eos = true;  ///< after each document, where the tokenizer has such an id
};

struct PrepareReport {
  int64_t documents = 0;
  int64_t train_tokens = 0;
  int64_t val_tokens = 0;
  int64_t vocab_size = 0;
  std::vector<std::string> files;  ///< names within `out`
};

/// Writes train_000000.bin ..., val_000000.bin ..., tokenizer.json and dataset.json (a manifest of
/// tokens per file). Throws ConfigError (settings, a folder that holds shards) or DataError
/// (inputs); files already complete stay.
PrepareReport prepare_data(const PrepareSettings& settings);

}  // namespace fp8train
