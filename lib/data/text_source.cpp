#include "data/text_source.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/utf8.h"

namespace fp8train {

std::vector<std::filesystem::path> expand_path(const std::string& path_or_glob) {
  if (std::filesystem::exists(path_or_glob)) {
    return {path_or_glob};
  }
  glob_t found = {};
  const int status = ::glob(path_or_glob.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::filesystem::path> paths;
  if (status == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  if (paths.empty()) {
    const bool is_pattern = path_or_glob.find_first_of("*?[") != std::string::npos;
    throw DataError(
        fmt::format("{}: {}", path_or_glob, is_pattern ? "no file matches" : "no such file"));
  }
  std::sort(paths.begin(), paths.end(),
            [](const auto& a, const auto& b) { return a.native() < b.native(); });
  return paths;
}

std::string all_text(const std::vector<DataSource>& sources, const TextKey& text_key) {
  std::string text;
  for (const DataSource& source : sources) {
    for (const std::filesystem::path& path : expand_path(source.path)) {
      const DataFormat& format = format_of(path, source.format);
      if (!format.has_tokens()) {
        format.for_each_document(path, text_key,
                                 [&](const std::string& document) { text += document; });
      }
    }
  }
  if (text.empty()) {
    throw ConfigError(
        "the char tokenizer is built from the training text, but no source of data.train is text; "
        "name a tokenizer.json instead");
  }
  return text;
}

int64_t split_point(int64_t count, double fraction) {
  return static_cast<int64_t>(static_cast<double>(count) * (1.0 - fraction));
}

int64_t count_units(std::string_view text, const Tokenizer& tokenizer) {
  if (tokenizer.unit() == TextUnit::byte) {
    return static_cast<int64_t>(text.size());
  }
  return std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); });
}

size_t byte_of_unit(std::string_view text, int64_t index, const Tokenizer& tokenizer) {
  size_t byte = 0;
  if (tokenizer.unit() == TextUnit::code_point) {
    for (; index > 0; --index) {
      byte += std::max<size_t>(1, code_point_length(text, byte));
    }
    return byte;
  }
  byte = static_cast<size_t>(index);
  while (tokenizer.type() != "byte" && byte > 0 && byte < text.size() &&
         is_continuation(text[byte])) {
    --byte;
  }
  return byte;
}

}  // namespace fp8train
