#include "data/readers/data_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"
#include "base/text.h"
#include "data/byte_stream.h"
#include "data/readers/json_lines.h"
#include "data/readers/text_content.h"

namespace fp8train {
namespace {

constexpr size_t kHeadBytes = 4096;
constexpr size_t kContentBytes = 64U << 10;  // enough for some rows or keys

// Advice: {0} is the file, {1} its name without the ending.
constexpr const char* kByDuckdb =
    "write JSON lines of it, for example with DuckDB: duckdb -c \"COPY (FROM '{0}') TO "
    "'{1}.jsonl'\"";
constexpr const char* kByReadCsv =
    "write JSON lines of it, for example with DuckDB: duckdb -c \"COPY (FROM read_csv('{0}')) TO "
    "'{1}.jsonl'\"";

std::string advice_for(const char* advice, const std::filesystem::path& path) {
  return fmt::format(fmt::runtime(advice), path.string(), path.stem().string());
}

/// A kind of files that are not read.
struct OtherFile {
  std::string_view magic;  ///< their beginning
  std::string_view name;
  const char* advice;
};
constexpr OtherFile kOtherFiles[] = {
    {"PAR1", "Parquet", kByDuckdb},
    {"ARROW1", "Arrow", kByDuckdb},
    {"PK\3\4", "zip or Excel", kByDuckdb},
    {"%PDF-", "PDF", "write its text to another file, for example: pdftotext {0} OUT.txt"},
    {"BZh", "bzip2", "unpack it: bunzip2 -k {0}"},
    {"\xFD"
     "7zXZ",
     "xz", "unpack it: unxz -k {0}"},
    {"SQLite format 3", "SQLite", kByDuckdb}};
constexpr std::string_view kUtf16[] = {"\xFF\xFE", "\xFE\xFF"};

void refuse_other_files(const std::filesystem::path& path, std::string_view head) {
  for (const auto& [magic, name, advice] : kOtherFiles) {
    if (head.starts_with(magic)) {
      throw DataError(fmt::format("{}: {} files are not read; {}", path.string(), name,
                                  advice_for(advice, path)));
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

std::string as_text(std::string_view key) {
  return fmt::format("{} text learns it as the text that it is", key);
}

/// The beginning of a text.
struct TextHead {
  explicit TextHead(const std::filesystem::path& path) {
    ByteStream file(path);
    while (bytes.size() < kContentBytes && file.append_to(bytes, kContentBytes - bytes.size())) {
    }
    std::string more;
    is_whole = !file.append_to(more, 1);
  }

  std::string bytes;
  bool is_whole = false;  ///< nothing follows
};

/// Throws DataError for JSON without records: objects over several lines, or an array of something
/// else. `remark` ends the message.
void refuse_other_json(const std::filesystem::path& path, const std::string& remark) {
  const TextHead head(path);
  const JsonKind kind = json_kind(head.bytes, head.is_whole);
  if (kind == JsonKind::objects) {
    throw DataError(fmt::format(
        "{0}: a JSON object over several lines; write a record in each line: jq -c . {0} > "
        "OUT.jsonl, or jq -c '.data[]' if the key data has the records{1}",
        path.string(), remark));
  }
  if (kind == JsonKind::array) {
    throw DataError(fmt::format(
        "{0}: a JSON array without objects; write a record in each line, of texts for example: "
        "jq -c '.[] | {{text: .}}' {0} > OUT.jsonl{1}",
        path.string(), remark));
  }
}

/// Tables and JSON, which would be learned as the text that they are.
void refuse_records_as_text(const std::filesystem::path& path, std::string_view key) {
  const std::string extension = lower(without_compression(path).extension().string());
  if (extension == ".csv" || extension == ".tsv") {
    throw DataError(fmt::format("{}: tables are not read; {}; {}", path.string(),
                                advice_for(kByReadCsv, path), as_text(key)));
  }
  if (const nlohmann::json first = first_record(path); first.is_object()) {
    throw DataError(fmt::format(
        "{}: the file holds records of JSON, but its name does not say so; set {} {} ({})",
        path.string(), key, is_dialogue(first) ? "chat" : "jsonl", as_text(key)));
  }
  refuse_other_json(path, "; " + as_text(key));
  const TextHead head(path);
  if (is_table(head.bytes, head.is_whole)) {
    throw DataError(fmt::format("{}: the file looks like a table, and tables are not read; {}; {}",
                                path.string(), advice_for(kByReadCsv, path), as_text(key)));
  }
}

const DataFormat& detect(const std::filesystem::path& path, std::string_view key,
                         const std::string& names) {
  const InputFile file(path);
  refuse_lfs_pointer(file);
  std::string bytes;
  ByteStream(path).append_to(bytes, kHeadBytes);
  refuse_other_files(path, bytes);
  for (const DataFormat* format : data_formats()) {
    if (format->matches({path, file, bytes, key})) {
      if (format == &text_format()) refuse_records_as_text(path, key);
      if (format == &jsonl_format() && first_record(path).is_null()) refuse_other_json(path, "");
      return *format;
    }
  }
  throw DataError(
      fmt::format("{}: cannot tell the format (binary content without a header that is known); set "
                  "{} {}",
                  path.string(), key, names));
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
  const std::string suffix =
      lower((has_tokens() ? path : without_compression(path)).extension().string());
  return !suffix.empty() && std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end();
}

const DataFormat& format_of(const std::filesystem::path& path, const std::string& format,
                            std::string_view key, bool texts_only) {
  std::vector<std::string> all = texts_only ? text_format_names() : data_format_names();
  std::erase(all, "auto");  // it did not help
  const std::string names = alternatives(all);
  if (is_automatic_format(format)) {
    return detect(path, key, names);
  }
  for (const DataFormat* known : data_formats()) {
    if (format == known->name) {
      return *known;
    }
  }
  throw ConfigError(fmt::format("Unknown data format '{}'; set {} {}", format, key, names));
}

}  // namespace fp8train
