#include "data/text_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"
#include "base/json_reader.h"
#include "base/machine.h"
#include "base/text.h"
#include "data/byte_stream.h"
#include "data/readers/data_format.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

/// Not read: a message says so when a folder has such a file.
constexpr std::string_view kParquet = ".parquet";

void sort_by_name(std::vector<fs::path>& paths) {
  std::sort(paths.begin(), paths.end(),
            [](const auto& a, const auto& b) { return a.native() < b.native(); });
}

DataError not_prepared(const fs::path& manifest, const std::string& why) {
  return DataError(
      fmt::format("{}: not a list of token files as `fp8train data prepare` writes "
                  "it ({}); name the files instead of the folder",
                  manifest.string(), why));
}

/// Returns the files that dataset.json lists.
std::vector<fs::path> prepared_files(const fs::path& folder, DataSplit split) {
  const fs::path manifest = folder / kDatasetFile;
  const std::string text = read_text_file(manifest, kMaxJsonFile);
  std::vector<fs::path> paths;
  try {
    const auto json = parse_json(text, manifest.filename().string());
    for (const auto& [key, of] :
         {std::pair{"train", DataSplit::train}, std::pair{"val", DataSplit::val}}) {
      if (split != of && split != DataSplit::all) continue;
      for (const nlohmann::json& file : json.at(key)) {
        paths.push_back(folder / file.at("file").get<std::string>());
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw not_prepared(manifest, plain_json_error(error));
  } catch (const DataError& error) {
    throw not_prepared(manifest, error.what());
  }
  if (paths.empty()) {
    throw DataError(fmt::format("{}: lists no {} files; prepare the data with --val-fraction",
                                manifest.string(),
                                split == DataSplit::train ? "training" : "validation"));
  }
  return paths;
}

std::vector<fs::path> files_of_folder(const fs::path& folder, DataSplit split) {
  if (has_file(folder / kDatasetFile)) return prepared_files(folder, split);
  const std::vector<std::string_view> suffixes = data_suffixes();
  std::vector<fs::path> paths;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder);
         entry != fs::recursive_directory_iterator(); ++entry) {
      const bool is_hidden = entry->path().filename().native().starts_with('.');
      if (entry->is_directory()) {
        const bool is_prepared = !is_hidden && has_file(entry->path() / kDatasetFile);
        if (is_prepared) {
          const std::vector<fs::path> files = prepared_files(entry->path(), split);
          paths.insert(paths.end(), files.begin(), files.end());
        }
        if (is_hidden || is_prepared) entry.disable_recursion_pending();
        continue;
      }
      const std::string extension = lower(without_compression(entry->path()).extension().string());
      const bool is_data = extension == kParquet ||
                           std::find(suffixes.begin(), suffixes.end(), extension) != suffixes.end();
      const bool is_file = entry->is_regular_file() || entry->is_symlink();  // maybe to nothing
      if (is_data && !is_hidden && is_file) paths.push_back(entry->path());
    }
  } catch (const fs::filesystem_error& error) {
    throw DataError(
        fmt::format("{}: cannot be listed: {}", folder.string(), error.code().message()));
  }
  if (paths.empty()) {
    throw DataError(fmt::format(
        "{}: a folder without data files ({}, also with .gz or .zst); give a pattern for files of "
        "other names, such as {}",
        folder.string(), fmt::join(suffixes, ", "), (folder / "*.md").string()));
  }
  sort_by_name(paths);
  return paths;
}

constexpr uint64_t kMostExpansion = 200;
constexpr uint64_t kSmallText = 1ULL << 30;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw DataError(fmt::format(
      "{}: {}; `fp8train data prepare` reads files of any length and writes token files, which "
      "need no memory",
      where, what));
}

}  // namespace

std::vector<std::filesystem::path> expand_path(const std::string& path_or_glob, DataSplit split) {
  std::error_code unseen;
  if (fs::is_directory(path_or_glob, unseen)) {
    return files_of_folder(path_or_glob, split);
  }
  if (fs::exists(path_or_glob, unseen)) {
    return {path_or_glob};
  }
  if (unseen) {
    throw DataError(fmt::format("{}: {}", path_or_glob, unseen.message()));
  }
  glob_t found = {};
  const int status = ::glob(path_or_glob.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::filesystem::path> paths;
  if (status == 0) {
    std::copy_if(found.gl_pathv, found.gl_pathv + found.gl_pathc, std::back_inserter(paths),
                 [&](const char* path) { return !fs::is_directory(path, unseen); });
  }
  ::globfree(&found);
  if (paths.empty()) {
    const bool is_pattern = path_or_glob.find_first_of("*?[") != std::string::npos;
    const bool is_hub_name = path_or_glob.find('.') == std::string::npos &&
                             path_or_glob[0] != '/' &&
                             std::ranges::count(path_or_glob, '/') == 1;  // OWNER/NAME
    throw DataError(fmt::format(
        "{}: {}", path_or_glob,
        is_pattern ? "no file matches this pattern"
        : is_hub_name
            ? "no such file; if it is a data set of the Hugging Face hub, fetch it first: "
              "`hf download NAME --repo-type dataset --local-dir FOLDER`"
            : "no such file"));
  }
  sort_by_name(paths);
  return paths;
}

std::vector<fs::path> files_of(const DataSource& source, DataSplit split) {
  return source.format == kCommandFormat ? std::vector{output_of_command(source.path)}
                                         : expand_path(source.path, split);
}

std::vector<std::string> read_documents(const std::vector<fs::path>& paths,
                                        const DataFormat& format, const RecordRules& rules) {
  std::vector<std::string> documents;
  TextBudget budget;
  for (const fs::path& path : paths) {
    format.for_each_document(path, rules, [&](std::string text) {
      budget.add(text.size() + sizeof(std::string), path.string());
      documents.push_back(std::move(text));
    });
  }
  return documents;
}

std::string all_text(const std::vector<DataSource>& sources, const RecordRules& rules) {
  std::string text;
  TextBudget budget;
  for (const DataSource& source : sources) {
    for (const std::filesystem::path& path : files_of(source)) {
      const DataFormat& format = format_of(path, source.format);
      if (!format.has_tokens()) {
        format.for_each_document(path, rules, [&](const std::string& document) {
          budget.add(document.size(), path.string());
          text += document;
        });
      }
    }
  }
  if (text.empty()) {
    throw ConfigError(
        "the char tokenizer is built from the training text, and there is none; name a "
        "tokenizer.json instead");
  }
  return text;
}

const DataFormat& text_format_of(const fs::path& path, const std::string& format,
                                 std::string_view purpose) {
  const std::string names = alternatives(text_format_names());
  const DataFormat& found = format_of(path, format, kFormatOption, true);
  if (found.has_tokens()) {
    throw DataError(fmt::format("{}: is {}, which holds tokens already; only files of format {} {}",
                                path.string(), found.name, names, purpose));
  }
  return found;
}

bool all_tokens(const std::vector<DataSource>& sources) {
  try {
    return !sources.empty() &&
           std::all_of(sources.begin(), sources.end(), [](const DataSource& source) {
             return source.format != kCommandFormat &&
                    format_of(expand_path(source.path).front(), source.format).has_tokens();
           });
  } catch (const Error&) {  // to be reported where the data are opened
    return false;
  }
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
  while (tokenizer.type() != TokenizerType::byte && byte > 0 && byte < text.size() &&
         is_continuation(text[byte])) {
    --byte;
  }
  return byte;
}

TextBudget::TextBudget() : most_(available_memory() / 2) {}

void TextBudget::add(uint64_t bytes, const std::string& where, uint64_t file_bytes) {
  held_ += bytes;
  if (held_ > most_) {
    refuse(where, fmt::format("the text is held in memory and is longer than {} MiB, half of what "
                              "is available",
                              most_ >> 20));
  }
  if (file_bytes > 0 && held_ > kSmallText && held_ / kMostExpansion > file_bytes) {
    refuse(where, fmt::format("the file holds more than {} times its length: {} MiB of text so far "
                              "in {} bytes",
                              kMostExpansion, held_ >> 20, file_bytes));
  }
}

}  // namespace fp8train
