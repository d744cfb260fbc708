#include "data/readers/data_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/lfs_pointer.h"
#include "data/byte_stream.h"

namespace fp8train {
namespace {

constexpr size_t kHeadBytes = 4096;

void refuse_parquet(const std::filesystem::path& path, std::string_view head) {
  if (head.starts_with("PAR1")) {
    throw DataError(
        fmt::format("{}: Parquet files are not read; write JSON lines of it, for example with "
                    "DuckDB: duckdb -c \"COPY (FROM '{}') TO '{}.jsonl'\"",
                    path.string(), path.string(), path.stem().string()));
  }
}

const DataFormat& detect(const std::filesystem::path& path, const std::string& advice) {
  const InputFile file(path);
  refuse_lfs_pointer(file);
  std::string bytes;
  ByteStream(path).append_to(bytes, kHeadBytes);
  refuse_parquet(path, bytes);
  for (const DataFormat* format : data_formats()) {
    if (format->matches({path, file, bytes})) {
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
      if (is_new && !suffix.empty()) {
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
