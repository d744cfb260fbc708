#pragma once
// Turns text and JSON-lines files into token files once, so that training need not tokenize.
// The result is a function of the inputs and the settings alone, whatever the number of threads.
// Memory does not grow with the files: documents are encoded as they are read, and a text is cut
// where its tokenizer allows it. A tokenizer that allows it nowhere holds one document at a time.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/readers/data_format.h"
#include "data/token_file_writer.h"

namespace fp8train {

/// The arguments of `data prepare`.
struct PrepareSettings {
  std::vector<std::string> inputs;  ///< files or globs, text or JSON lines; also gzip or Zstandard
  std::string format = "auto";      ///< auto, or one of text_format_names()
  std::filesystem::path out;        ///< folder; created; must not hold shards already
  TokenFileFormat output_format = TokenFileFormat::llmc;
  std::string tokenizer = "byte";  ///< as in DataSettings
  RecordRules rules = rules_of_command();
  std::string chat_template = "auto";  ///< template of dialogues, as ChatEncoder takes it
  double val_fraction =
      0.0;  ///< last part of each input: of its text, or of its documents for JSON lines
  int64_t shard_tokens = 100'000'000;
  bool append_eos = true;  ///< after each document, where the tokenizer has such an id
  int64_t threads = 0;     ///< 0: one for each processor
  std::function<void(uint64_t bytes_done)> progress;  ///< bytes of the input files; may be empty
};

/// The result of `data prepare`.
struct PrepareReport {
  int64_t documents = 0;
  int64_t train_tokens = 0;
  int64_t val_tokens = 0;
  int64_t vocab_size = 0;
  std::vector<std::string> files;  ///< names within `out`
};

/// Writes token files. Either all inputs are dialogues or none is. Dialogues are written with their
/// targets and the positions where they end, so that data.packing can tell them apart;
/// `output_format` is llmc then. Writes train_000000.bin ..., val_000000.bin ... (or .npy; .bin
/// with .idx), the tokenizer's files and dataset.json (a manifest of tokens per file). Throws
/// ConfigError (settings, a folder that holds shards), DataError (inputs) or DeviceError (a disk
/// that refuses); files already complete stay.
PrepareReport prepare_data(const PrepareSettings& settings);

}  // namespace fp8train
