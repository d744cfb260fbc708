#pragma once
// The files of a data source, and the point at which their text is cut for validation.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_settings.h"
#include "data/readers/data_format.h"
#include "data/tokenizer.h"

namespace fp8train {

/// A part of the files of a prepared folder.
enum class DataSplit : uint8_t { train, val, all };

/// Returns the files that a path, a folder or a glob names, in byte order of their names. Of a
/// folder that `data prepare` wrote these are the token files of `split`, in the order of
/// dataset.json, also if it lies below another folder. Of another folder these are the text,
/// JSON-lines and token files in it and in folders below, which their names show, but for hidden
/// ones; Parquet files are among them, so that reading refuses them. Throws DataError when there is
/// none, or a folder cannot be listed.
std::vector<std::filesystem::path> expand_path(const std::string& path_or_glob,
                                               DataSplit split = DataSplit::train);

/// Returns the files of a source: those of expand_path(), or output_of_command().
std::vector<std::filesystem::path> files_of(const DataSource& source,
                                            DataSplit split = DataSplit::train);

/// Returns the file with the output of a command (`format: command`: Parquet by DuckDB, a query, a
/// filter), which is data like any other from then on: what /bin/sh -c `command` writes on standard
/// output, JSON lines (.jsonl) where the first byte is a brace, else text (.txt). Runs the command
/// unless cache_folder() has its output from this working directory; processes of a machine wait
/// for the first one. Throws DataError if the command fails or writes nothing, and DeviceError if
/// the output cannot be read or stored.
std::filesystem::path output_of_command(const std::string& command);

/// Returns the format of a file of a command that takes text only, as format_of() does. Throws
/// DataError for one that holds tokens: "only files of format NAMES PURPOSE".
const DataFormat& text_format_of(const std::filesystem::path& path, const std::string& format,
                                 std::string_view purpose);

/// Whether there are sources and the first file of each is a token file. Returns false if one
/// cannot be read. Runs no command, whose output is text.
bool all_tokens(const std::vector<DataSource>& sources);

/// The file in which `data prepare` describes the token files of a folder.
inline constexpr const char* kDatasetFile = "dataset.json";

/// Returns the documents of files of a format that has them, in their order. Throws DataError for
/// files that cannot be read or whose text does not fit into memory (TextBudget).
std::vector<std::string> read_documents(const std::vector<std::filesystem::path>& paths,
                                        const DataFormat& format, const RecordRules& rules);

/// Returns all text of the sources without tokens, for a tokenizer built from the data. Throws
/// ConfigError when there is none, and DataError as read_documents() does.
std::string all_text(const std::vector<DataSource>& sources, const RecordRules& rules);

/// Returns the unit of `count` at which the held-back part begins: int(count * (1 - fraction)), as
/// in nanoGPT's prepare scripts.
int64_t split_point(int64_t count, double fraction);

/// Returns the length of `text` in the tokenizer's units (bytes or code points).
int64_t count_units(std::string_view text, const Tokenizer& tokenizer);
/// Returns the byte of `text` at which unit `index` begins. A subword tokenizer counts bytes, but
/// texts are cut only where a code point begins, so the byte may lie up to three before.
size_t byte_of_unit(std::string_view text, int64_t index, const Tokenizer& tokenizer);

/// The bound of texts that are held in memory as a whole, as a run does with text files: a
/// compressed file may be thousands of times as long as it is on the disk. What only passes through
/// (`data prepare`, `data inspect`) needs no bound. Counts bytes of text that are held against half
/// of the memory that was available at the beginning; the rest is for their ids. Available is what
/// the system, the control group and `ulimit -v` leave.
class TextBudget {
 public:
  TextBudget();
  explicit TextBudget(uint64_t most) : most_(most) {}

  /// Counts `bytes` of text more. `where`, usually a file, begins the DataError that is thrown
  /// beyond the bound. `file_bytes`, if it is not 0: the bytes of the compressed file that all the
  /// text comes from; then more than 1 GiB that is 200 times as long is refused, too, which is no
  /// text but a file made to exhaust a reader.
  void add(uint64_t bytes, const std::string& where, uint64_t file_bytes = 0);

 private:
  uint64_t most_;
  uint64_t held_ = 0;
};

}  // namespace fp8train
