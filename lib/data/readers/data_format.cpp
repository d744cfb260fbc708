#include "data/readers/data_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/lfs_pointer.h"
#include "data/byte_stream.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

constexpr size_t kHeadBytes = 4096;

/// The beginning of files that are not read, and their name.
constexpr std::pair<std::string_view, std::string_view> kOtherFiles[] = {
    {"PAR1", "Parquet"},
    {"ARROW1", "Arrow"},
    {"PK\3\4", "zip or Excel"},
    {"BZh", "bzip2"},
    {"\xFD"
     "7zXZ",
     "xz"},
    {"SQLite format 3", "SQLite"}};
constexpr std::string_view kUtf16[] = {"\xFF\xFE", "\xFE\xFF"};

std::string by_duckdb(const std::filesystem::path& path) {
  return fmt::format(
      "write JSON lines of it, for example with DuckDB: duckdb -c \"COPY (FROM '{}') TO "
      "'{}.jsonl'\"",
      path.string(), path.stem().string());
}

void refuse_other_files(const std::filesystem::path& path, std::string_view head) {
  for (const auto& [magic, name] : kOtherFiles) {
    if (head.starts_with(magic)) {
      throw DataError(
          fmt::format("{}: {} files are not read; {}", path.string(), name, by_duckdb(path)));
    }
  }
  for (const std::string_view mark : kUtf16) {
    if (head.starts_with(mark)) {
      throw DataError(
          fmt::format("{}: UTF-16 with a byte order mark; texts are UTF-8: iconv -f "
                      "UTF-16 -t UTF-8 {} > OUT",
                      path.string(), path.string()));
    }
  }
}

/// Tables, and records under another name, which would be learned as the text that they are.
void refuse_records_as_text(const std::filesystem::path& path) {
  const std::string extension = without_compression(path).extension().string();
  if (extension == ".csv" || extension == ".tsv") {
    throw DataError(
        fmt::format("{}: tables are not read; {}; format: text learns it as the text that it is",
                    path.string(), by_duckdb(path)));
  }
  if (const nlohmann::json first = first_record(path); first.is_object()) {
    throw DataError(fmt::format(
        "{}: the file holds records of JSON, but its name does not say so; set format: {} (format: "
        "text learns it as the text that it is)",
        path.string(), is_dialogue(first) ? "chat" : "jsonl"));
  }
}

const DataFormat& detect(const std::filesystem::path& path, const std::string& advice) {
  const InputFile file(path);
  refuse_lfs_pointer(file);
  std::string bytes;
  ByteStream(path).append_to(bytes, kHeadBytes);
  refuse_other_files(path, bytes);
  for (const DataFormat* format : data_formats()) {
    if (format->matches({path, file, bytes})) {
      if (format == &text_format()) refuse_records_as_text(path);
      return *format;
    }
  }
  throw DataError(
      fmt::format("{}: cannot tell the format (binary content without a header that is known); {}",
                  path.string(), advice));
}

}  // namespace

const std::vector<const DataFormat*>& data_formats() {
  static const std::vector<const DataFormat*> kFormats = {
      &llmc_format(),     // a magic number
      &npy_format(),      // a magic number
      &chat_format(),     // a name, and keys of a dialogue
      &jsonl_format(),    // a name
      &indexed_format(),  // a name, and a second file
      &raw_u16_format(),  // a name, and nothing that speaks against it
      &text_format(),     // what looks like text
  };
  return kFormats;
}

std::vector<std::string> data_format_names() {
  std::vector<std::string> names = {"auto"};
  for (const DataFormat* format : data_formats()) {
    names.emplace_back(format->name);
  }
  return names;
}

std::vector<std::string> text_format_names() {
  std::vector<std::string> names;
  for (const DataFormat* format : data_formats()) {
    if (!format->has_tokens()) {
      names.emplace_back(format->name);
    }
  }
  return names;
}

std::vector<std::string_view> data_suffixes() {
  std::vector<std::string_view> suffixes;
  for (const DataFormat* format : data_formats()) {
    for (const std::string_view suffix : format->suffixes) {
      const bool is_new = std::find(suffixes.begin(), suffixes.end(), suffix) == suffixes.end();
      if (is_new && !suffix.empty() && suffix != ".json") {
        suffixes.push_back(suffix);
      }
    }
  }
  return suffixes;
}

bool DataFormat::has_suffix(const std::filesystem::path& path) const {
  const std::string suffix = (has_tokens() ? path : without_compression(path)).extension().string();
  return !suffix.empty() && std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end();
}

const DataFormat& format_of(const std::filesystem::path& path, const std::string& format,
                            std::string_view advice) {
  const std::vector<std::string> names = data_format_names();
  const std::string what_to_do =
      advice.empty()
          ? fmt::format("set format: {}", fmt::join(names.begin() + 1, names.end(), ", "))
          : std::string(advice);  // `auto` is first, and what did not help
  if (is_automatic_format(format)) {
    return detect(path, what_to_do);
  }
  for (const DataFormat* known : data_formats()) {
    if (format == known->name) {
      return *known;
    }
  }
  throw ConfigError(fmt::format("Unknown data format '{}'; {}", format, what_to_do));
}

}  // namespace fp8train
