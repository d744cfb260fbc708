#pragma once
// Describes the content of a data file for `fp8train data inspect`. The file is read twice, for its
// hash and for its content, and only a part of it is in memory at a time.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/readers/data_format.h"
#include "data/tokenizer.h"

namespace fp8train {

/// The arguments of `data inspect`.
struct InspectSettings {
  std::string format = "auto";
  RecordRules rules = rules_of_command();
  const Tokenizer* tokenizer = nullptr;  ///< null: texts are not encoded, samples are ids
  int64_t threads = 0;                   ///< threads that encode; 0: one for each processor
  int64_t sample_tokens = 24;
};

/// The facts that `data inspect` prints about a file.
struct DataFileFacts {
  std::string path;
  std::string format;                  ///< a name of data/readers/data_format.h
  std::string type;                    ///< of stored ids, "u16"; empty: text
  uint64_t bytes = 0;                  ///< bytes of the file, without those that belong to it
  std::optional<int64_t> tokens;       ///< none for a text without a tokenizer
  std::optional<int64_t> documents;    ///< those of the format; else, with a tokenizer that has an
                                       ///< end-of-sequence id, the number of these
  int32_t min_id = 0, max_id = 0;      ///< set if there are tokens
  std::optional<uint64_t> text_bytes;  ///< bytes of the documents of a text
  std::vector<int32_t> first_ids;      ///< ids at the beginning of the file
  std::string first_text;              ///< the same ones decoded, or how the text begins
  std::string xxh3_128;                ///< hash of the bytes of the file, as checkpoints note it
};

/// Reads a file of any format. An id beyond the tokenizer's vocabulary is not an error. Throws
/// DataError for a damaged file or one of no known format, and ConfigError for a format of an
/// unknown name.
DataFileFacts inspect_file(const std::filesystem::path& path, const InspectSettings& settings);

}  // namespace fp8train
