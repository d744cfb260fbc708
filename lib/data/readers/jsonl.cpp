// JSON lines: an object in each line, with a document under one of its keys. Files, which
// may be compressed, are read in pieces.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_error.h"
#include "data/byte_stream.h"
#include "data/readers/data_format.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

constexpr size_t kReadBytes = 1U << 20;
constexpr size_t kMaxLine = 64U << 20;

bool is_jsonl(const FileHead& head) {
  return jsonl_format().has_suffix(head.path);
}

void visit_records(const std::filesystem::path& path, const TextKey& text_key,
                   const DocumentVisitor& visit) {
  const std::string advice = fmt::format("set {}", text_key.option);
  for_each_json_line(path, [&](std::string_view line, const std::string& where) {
    const JsonRecord record(line, where);
    visit(record.text(record.at({text_key.name}, advice), text_key.name));
  });
}

}  // namespace

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

void for_each_json_line(
    const std::filesystem::path& path,
    const std::function<void(std::string_view line, const std::string& where)>& visit) {
  for_each_line(path, [&](std::string_view line, int64_t number) {
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      visit(line, fmt::format("{}:{}", path.string(), number));
    }
  });
}

nlohmann::json parse_json_line(std::string_view line, const std::string& where) {
  try {
    return nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& failure) {
    const JsonError error = json_error(line, failure.byte);
    throw DataError(fmt::format("{}:{}: not JSON: {}", where, error.column, error.what));
  } catch (const nlohmann::json::exception& failure) {  // a number that is too large
    throw DataError(fmt::format("{}: not JSON: {}", where, plain_json_error(failure)));
  }
}

JsonRecord::JsonRecord(std::string_view line, std::string where)
    : where_(std::move(where)), value_(parse_json_line(line, where_)) {
  if (!value_.is_object()) {
    fail(fmt::format("the line is not a JSON object but {}", value_.type_name()));
  }
}

const nlohmann::json& JsonRecord::at(std::initializer_list<std::string_view> keys,
                                     std::string_view advice) const {
  for (const std::string_view key : keys) {
    if (const auto found = value_.find(key); found != value_.end()) return *found;
  }
  std::string present;
  for (const auto& [key, ignored] : value_.items()) {
    present += (present.empty() ? "" : ", ") + key;
  }
  fail(fmt::format("no key '{}' (keys here: {}); {}", *keys.begin(), present, advice));
}

std::string JsonRecord::text(const nlohmann::json& value, std::string_view key) const {
  if (!value.is_string()) {
    fail(fmt::format("'{}' is not a string but {}", key, value.type_name()));
  }
  return value.get<std::string>();
}

void JsonRecord::fail(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", where_, what));
}

const DataFormat& jsonl_format() {
  static constexpr DataFormat kFormat = {.name = "jsonl",
                                         .suffixes = {".jsonl", ".ndjson"},
                                         .content = DataContent::documents,
                                         .matches = is_jsonl,
                                         .for_each_document = visit_records};
  return kFormat;
}

}  // namespace fp8train
