#pragma once
// Finding the files of a data source, telling their format, and walking the documents of text and
// JSON-lines files, which may be compressed (gzip, Zstandard). Nothing is held in memory:
// JSON-lines files are read in pieces, a text file is one document.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_settings.h"
#include "data/tokenizer.h"

namespace fp8train {

enum class DataFormat : uint8_t { text, jsonl, llmc, raw_u16 };

std::string_view name_of(DataFormat format);

/// The files a path or glob names, in byte order of their names. Throws DataError when there is
/// none.
std::vector<std::filesystem::path> expand_path(const std::string& path_or_glob);

/// What `format` says, or for "auto" what the first bytes and the name say: an llm.c magic; .jsonl
/// or .ndjson; .bin is raw u16; anything without NUL bytes is text. Throws ConfigError for an
/// unknown name, DataError when "auto" cannot tell: also for a .bin file that is text, has an
/// .idx file of the same name, or zeros in every second id.
DataFormat format_of(const std::filesystem::path& path, const std::string& format);

/// Calls `visit` for every document in file order: the whole file (text), or the string under
/// `text_key` of each line (jsonl; blank lines are skipped). Throws DataError with file:line for a
/// malformed line, a missing key or a line above 64 MiB.
void for_each_document(const std::filesystem::path& path, DataFormat format,
                       const std::string& text_key,
                       const std::function<void(std::string document)>& visit);

/// The part of `text` without a code point that its end cuts in two.
std::string_view without_cut_end(std::string_view text);

/// All text of the text and jsonl sources, for a tokenizer built from the data. Throws ConfigError
/// when there is none.
std::string all_text(const std::vector<DataSource>& sources, const std::string& text_key);

/// Where the held-back part of `count` units begins: int(count * (1 - fraction)), as in nanoGPT's
/// prepare scripts.
int64_t split_point(int64_t count, double fraction);

/// Length of `text` in the tokenizer's units (bytes or code points), and the byte where unit
/// `index` begins. A subword tokenizer counts bytes but is cut only where a code point begins, so
/// the byte may lie up to three before.
int64_t count_units(std::string_view text, const Tokenizer& tokenizer);
size_t byte_of_unit(std::string_view text, int64_t index, const Tokenizer& tokenizer);

}  // namespace fp8train
