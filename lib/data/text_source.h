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

enum class DataSplit : uint8_t { train, val, all };

/// The files that a path, a folder or a glob names, in byte order of their names. Of a folder that
/// `data prepare` wrote these are the token files of `split`, also where it lies below; of another
/// one the text, JSON-lines and token files in it and in folders below, by their names. Throws
/// DataError when there is none.
std::vector<std::filesystem::path> expand_path(const std::string& path_or_glob,
                                               DataSplit split = DataSplit::train);

/// The format of a file of text, as format_of() with the advice of commands that take text only.
/// Throws DataError for one that holds tokens: "only files of format NAMES PURPOSE".
const DataFormat& text_format_of(const std::filesystem::path& path, const std::string& format,
                                 std::string_view purpose);

/// Whether there are sources and all are token files, as far as they can be looked at.
bool all_tokens(const std::vector<DataSource>& sources);

/// What `data prepare` writes about the token files of a folder.
inline constexpr const char* kDatasetFile = "dataset.json";

/// All text of the sources without tokens, for a tokenizer built from the data. Throws ConfigError
/// when there is none.
std::string all_text(const std::vector<DataSource>& sources, const TextKey& text_key);

/// Where the held-back part of `count` units begins: int(count * (1 - fraction)), as in nanoGPT's
/// prepare scripts.
int64_t split_point(int64_t count, double fraction);

/// Length of `text` in the tokenizer's units (bytes or code points), and the byte where unit
/// `index` begins. A subword tokenizer counts bytes but is cut only where a code point begins, so
/// the byte may lie up to three before.
int64_t count_units(std::string_view text, const Tokenizer& tokenizer);
size_t byte_of_unit(std::string_view text, int64_t index, const Tokenizer& tokenizer);

}  // namespace fp8train
