#include "data/text_source.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/byte_stream.h"
#include "data/input_file.h"
#include "data/token_file.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr size_t kReadBytes = 1U << 20;
constexpr size_t kMaxLine = 64U << 20;
constexpr size_t kProbeBytes = 4096;
constexpr std::string_view kNpyMagic = "\x93NUMPY";

std::string document_of(std::string_view line, const std::string& text_key,
                        const std::string& where) {
  const auto fail = [&](const std::string& what) {
    return DataError(fmt::format("{}: {}", where, what));
  };
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    throw fail(fmt::format("malformed JSON line: {}", error.what()));
  }
  if (!value.is_object()) {
    throw fail(fmt::format("the line is not a JSON object but {}", value.type_name()));
  }
  const auto text = value.find(text_key);
  if (text == value.end()) {
    std::string keys;
    for (const auto& [key, ignored] : value.items()) {
      keys += (keys.empty() ? "" : ", ") + key;
    }
    throw fail(fmt::format("no key '{}' (keys here: {}); set data.text_key", text_key, keys));
  }
  if (!text->is_string()) {
    throw fail(fmt::format("'{}' is not a string but {}", text_key, text->type_name()));
  }
  return text->get<std::string>();
}

void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, int64_t)>& visit) {
  ByteStream file(path);
  std::string pending;
  int64_t line = 1;
  for (size_t begin = 0; file.append_to(pending, kReadBytes); begin = pending.size()) {
    size_t start = 0;
    for (size_t end = pending.find('\n', begin); end != std::string::npos;
         end = pending.find('\n', start)) {
      visit(std::string_view(pending).substr(start, end - start), line++);
      start = end + 1;
    }
    pending.erase(0, start);
    if (pending.size() > kMaxLine) {
      throw DataError(fmt::format("{}:{}: the line is longer than {} bytes; is this JSON lines?",
                                  path.string(), line, kMaxLine));
    }
  }
  if (!pending.empty()) {
    visit(pending, line);
  }
}

std::string whole_file(const std::filesystem::path& path) {
  ByteStream file(path);
  std::string text;
  text.reserve(std::filesystem::file_size(path));
  while (file.append_to(text, kReadBytes)) {
  }
  return text;
}

bool is_text(std::string_view head) {
  const bool has_control = std::any_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r' && byte != '\f') ||
           byte == 0x7F;
  });
  return !head.empty() && !has_control && is_utf8(without_cut_end(head));
}

/// The largest 16-bit values at even and at odd places of the file's begin, middle and end.
std::array<int, 2> largest_by_place(const InputFile& file) {
  std::array<int, 2> largest = {0, 0};
  const uint64_t words = file.size() / sizeof(uint16_t);
  const uint64_t part = std::min<uint64_t>(words, kProbeBytes) / 2 * 2;
  std::vector<uint16_t> ids(part);
  for (const uint64_t quarters : {0, 2, 4}) {
    const uint64_t begin = (words - part) / 4 * quarters / 2 * 2;
    file.read(begin * sizeof(uint16_t), ids.data(), part * sizeof(uint16_t));
    for (size_t i = 0; i < ids.size(); ++i) {
      largest[i % 2] = std::max<int>(largest[i % 2], ids[i]);
    }
  }
  return largest;
}

/// Why a .bin file without a known header hardly holds 16-bit ids; empty where nothing says so.
std::string why_not_u16(const std::filesystem::path& path, const InputFile& file,
                        std::string_view head) {
  constexpr uint64_t kFewIds = 8;
  constexpr int kHighestHalf = 3;  // of a 32-bit id: vocabularies have less than 2^18 entries
  constexpr int kSmallVocabulary = 256;
  std::filesystem::path index = path;
  index.replace_extension(".idx");
  std::error_code unseen;
  if (std::filesystem::exists(index, unseen)) {
    return fmt::format("{} makes it part of an indexed data set, which is not read yet",
                       index.string());
  }
  if (is_text(head)) {
    return "its content is text; set format: text, or jsonl";
  }
  if (file.size() < kFewIds * sizeof(uint16_t)) {
    return "";
  }
  const auto [even, odd] = largest_by_place(file);
  if (odd == 0 || even == 0 || (odd <= kHighestHalf && even >= kSmallVocabulary)) {
    return "every second 16-bit value is 0 or nearly so, as in files of 32-bit or 64-bit ids; "
           "write the ids as 16-bit ones, or as llm.c shards";
  }
  return "";
}

DataFormat detect(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string head;
  ByteStream(path).append_to(head, kProbeBytes);
  int32_t magic = 0;
  if (head.size() >= sizeof(magic)) {
    std::memcpy(&magic, head.data(), sizeof(magic));
  }
  if (magic == kLlmcMagicU16 || magic == kLlmcMagicU32) return DataFormat::llmc;
  if (head.starts_with(kNpyMagic)) {
    throw DataError(
        fmt::format("{}: .npy files are not read; save the array with tofile() as u16 "
                    "and set format: raw_u16",
                    path.string()));
  }
  const std::string extension = without_compression(path).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return DataFormat::jsonl;
  if (extension == ".bin") {
    if (const std::string reason = why_not_u16(path, file, head); !reason.empty()) {
      throw DataError(fmt::format(
          "{}: the file has no header of a format that is known, and {}. If it holds 16-bit ids "
          "nevertheless, set format: raw_u16",
          path.string(), reason));
    }
    return DataFormat::raw_u16;
  }
  if (head.find('\0') == std::string::npos) return DataFormat::text;
  throw DataError(
      fmt::format("{}: cannot tell the format (binary content, no llm.c magic); set "
                  "format: text, jsonl, llmc or raw_u16",
                  path.string()));
}

}  // namespace

std::string_view without_cut_end(std::string_view text) {
  constexpr size_t kLongest = 4;
  size_t end = text.size();
  while (end > 0 && text.size() - end < kLongest - 1 && is_continuation(text[end - 1])) {
    --end;
  }
  const bool ends_cut = end > 0 && code_point_length(text, end - 1) == 0;
  return ends_cut ? text.substr(0, end - 1) : text;
}

std::string_view name_of(DataFormat format) {
  switch (format) {
    case DataFormat::text:
      return "text";
    case DataFormat::jsonl:
      return "jsonl";
    case DataFormat::llmc:
      return "llmc";
    case DataFormat::raw_u16:
      return "raw_u16";
  }
  return "?";
}

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

DataFormat format_of(const std::filesystem::path& path, const std::string& format) {
  for (const DataFormat known :
       {DataFormat::text, DataFormat::jsonl, DataFormat::llmc, DataFormat::raw_u16}) {
    if (format == name_of(known)) {
      return known;
    }
  }
  if (format.empty() || format == "auto") {
    return detect(path);
  }
  throw ConfigError(
      fmt::format("data format '{}' is unknown; known: auto, text, jsonl, llmc, raw_u16", format));
}

void for_each_document(const std::filesystem::path& path, DataFormat format,
                       const std::string& text_key,
                       const std::function<void(std::string document)>& visit) {
  if (format == DataFormat::text) {
    visit(whole_file(path));
    return;
  }
  check(format == DataFormat::jsonl, "only text and jsonl files hold documents");
  for_each_line(path, [&](std::string_view line, int64_t number) {
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      visit(document_of(line, text_key, fmt::format("{}:{}", path.string(), number)));
    }
  });
}

std::string all_text(const std::vector<DataSource>& sources, const std::string& text_key) {
  std::string text;
  for (const DataSource& source : sources) {
    for (const std::filesystem::path& path : expand_path(source.path)) {
      const DataFormat format = format_of(path, source.format);
      if (format == DataFormat::text || format == DataFormat::jsonl) {
        for_each_document(path, format, text_key,
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
