#pragma once
// Trains a byte-level BPE vocabulary (Sennrich et al., arXiv 1508.07909, over bytes as in GPT-2)
// and writes it as tokenizer.json. The result is a function of the texts and the settings alone.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/readers/data_format.h"

namespace fp8train {

/// The arguments of the training of a tokenizer.
struct TokenizerTraining {
  std::vector<std::string> inputs;  ///< files or globs, text or JSON lines; also compressed
  std::string format = "auto";      ///< auto, or one of text_format_names()
  RecordRules rules = rules_of_command();
  int64_t vocab_size = 32000;      ///< ids: the end-of-text token, 256 bytes, and merges
  std::string pattern = "llama3";  ///< how texts are split: a name of rank_patterns()
  std::filesystem::path out;       ///< folder; created
};

/// The result of the training of a tokenizer.
struct TokenizerReport {
  int64_t vocab_size = 0;  ///< smaller than asked for where no pair occurs twice any more
  int64_t words = 0;       ///< different pieces of the texts
  std::vector<std::string> files;
};

/// Trains a vocabulary: merges the most frequent pair of neighbours again and again; of pairs that
/// are as frequent, the one with the lowest left id, then the lowest right id. Id 0 is
/// <|endoftext|>, 1 to 256 are bytes in the order of their characters in the byte-level alphabet.
/// Holds the different pieces in memory. Throws ConfigError (settings, a folder that holds a
/// tokenizer.json), DataError (inputs) or DeviceError (a disk that refuses).
TokenizerReport train_tokenizer(const TokenizerTraining& settings);

}  // namespace fp8train
