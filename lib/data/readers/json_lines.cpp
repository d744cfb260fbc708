#include "data/readers/json_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/json_error.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/text.h"
#include "data/byte_stream.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr size_t kReadBytes = 1U << 20;
constexpr size_t kMaxLine = 64U << 20;
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

using RecordVisitor = std::function<void(std::string_view record, const std::string& where)>;
/// Returns whether there is more to read.
using RecordStop = std::function<bool(std::string_view record, const std::string& where)>;

/// A file that begins with [ is no array of JSON.
class ArrayError : public DataError {
  using DataError::DataError;
};

/// Finds the elements of an array that comes in lines.
class ArrayScanner {
 public:
  ArrayScanner(std::string path, int64_t line, const RecordStop& visit)
      : path_(std::move(path)), line_(line), visit_(visit) {}

  /// Returns false, and finds no more, once `visit` has.
  bool add(std::string_view line) {
    for (const char c : line) {
      if (!stopped_) add(c);
    }
    if (!stopped_) add('\n');
    ++line_;
    if (element_.size() > kMaxLine) {
      fail(fmt::format("an element of the array is longer than {} bytes", kMaxLine));
    }
    return !stopped_;
  }

  void finish() const {
    if (depth_ > 0 && !stopped_) fail("the array is not closed before the file ends");
  }

 private:
  void add(char c) {
    const bool is_blank = kBlanks.find(c) != std::string_view::npos;
    if (in_text_) {
      in_text_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else if (closed_) {
      if (!is_blank) fail("more text after the end of the array");
      return;
    } else if (c == '"') {
      in_text_ = true;
    } else if (c == '[' || c == '{') {
      if (++depth_ == 1) return;
    } else if (c == ']' || c == '}') {
      closed_ = --depth_ == 0;
      if (closed_) return end_element(c);
    } else if (c == ',' && depth_ == 1) {
      return end_element(c);
    }
    if (element_.empty() && is_blank) return;
    if (element_.empty()) element_line_ = line_;
    element_ += c;
  }

  void end_element(char end) {
    if (element_.empty()) {
      if (end == ',' || elements_ > 0) fail(fmt::format("nothing before {} in the array", end));
      return;
    }
    ++elements_;
    stopped_ = !visit_(element_, fmt::format("{}:{}", path_, element_line_));
    element_.clear();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw ArrayError(fmt::format("{}:{}: {}", path_, line_, what));
  }

  std::string path_;
  int64_t line_;
  const RecordStop& visit_;
  std::string element_;
  int64_t element_line_ = 0, elements_ = 0;
  int depth_ = 0;
  bool in_text_ = false, escaped_ = false, closed_ = false, stopped_ = false;
};

/// Until `visit` returns false.
void visit_lines(const std::filesystem::path& path,
                 const std::function<bool(std::string_view, int64_t)>& visit) {
  ByteStream file(path);
  std::string pending;
  int64_t line = 1;
  for (size_t begin = 0; file.append_to(pending, kReadBytes); begin = pending.size()) {
    size_t start = 0;
    for (size_t end = pending.find('\n', begin); end != std::string::npos;
         end = pending.find('\n', start)) {
      if (!visit(std::string_view(pending).substr(start, end - start), line++)) return;
      start = end + 1;
    }
    pending.erase(0, start);
    if (pending.size() > kMaxLine) {
      throw DataError(
          fmt::format("{}:{}: the line is longer than {} bytes; is this JSON lines? "
                      "jq -c '.[]' writes an array so",
                      path.string(), line, kMaxLine));
    }
  }
  if (!pending.empty()) {
    visit(pending, line);
  }
}

/// Until `visit` returns false.
void visit_records(const std::filesystem::path& path, const RecordStop& visit) {
  std::optional<ArrayScanner> array;
  bool is_first = true;
  visit_lines(path, [&](std::string_view line, int64_t number) {
    if (number == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
    const size_t begin = line.find_first_not_of(kBlanks);
    if (is_first && begin != std::string_view::npos) {
      is_first = false;
      if (line[begin] == '[') array.emplace(path.string(), number, visit);
    }
    if (array) return array->add(line);
    return begin == std::string_view::npos ||
           visit(line, fmt::format("{}:{}", path.string(), number));
  });
  if (array) array->finish();
}

/// Whether the first byte that is not blank begins an object or an array.
bool begins_like_json(const std::filesystem::path& path) {
  ByteStream file(path);
  std::string bytes;
  while (bytes.find_first_not_of(kBlanks) == std::string::npos) {
    bytes.clear();
    if (!file.append_to(bytes, kReadBytes)) return false;
    if (bytes.starts_with(kByteOrderMark)) bytes.erase(0, kByteOrderMark.size());
  }
  const char first = bytes[bytes.find_first_not_of(kBlanks)];
  return first == '{' || first == '[';
}

/// NaN and infinities, which Python writes and JSON does not have, become null.
std::optional<std::string> without_special_numbers(std::string_view text) {
  static constexpr std::array<std::string_view, 3> kWords = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool found = false;
  bool in_text = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const auto* const word = std::ranges::find_if(
        kWords, [&](std::string_view candidate) { return rest.starts_with(candidate); });
    if (!in_text && word != kWords.end()) {
      out += "null";
      i += word->size();
      found = true;
      continue;
    }
    if (text[i] == '"') in_text = !in_text;
    const size_t length = in_text && text[i] == '\\' ? std::min<size_t>(2, rest.size()) : 1;
    out += rest.substr(0, length);
    i += length;
  }
  return found ? std::optional(std::move(out)) : std::nullopt;
}

/// The first byte that is not UTF-8, as an error; nothing where all are.
std::optional<std::string> why_not_utf8(std::string_view text, const std::string& where) {
  size_t at = 0;
  while (at < text.size() && code_point_length(text, at) > 0) at += code_point_length(text, at);
  if (at == text.size()) return std::nullopt;
  return fmt::format(
      "{}:{}: byte 0x{:02X} is not UTF-8; if the file is Latin-1: iconv -f latin1 -t utf-8", where,
      at + 1, static_cast<unsigned char>(text[at]));
}

constexpr size_t kNamedRecords = 3;
constexpr size_t kNamedKeys = 20;

}  // namespace

void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, int64_t)>& visit) {
  visit_lines(path, [&](std::string_view line, int64_t number) {
    visit(line, number);
    return true;
  });
}

void for_each_json_line(const std::filesystem::path& path, const RecordVisitor& visit) {
  visit_records(path, [&](std::string_view record, const std::string& where) {
    visit(record, where);
    return true;
  });
}

nlohmann::json first_record(const std::filesystem::path& path) {
  if (!begins_like_json(path)) return {};
  nlohmann::json first;
  try {
    visit_records(path, [&](std::string_view record, const std::string& /*where*/) {
      first = nlohmann::json::parse(without_special_numbers(record).value_or(std::string(record)),
                                    nullptr, false);
      return first.is_discarded() && record.starts_with('{');  // the next one may be whole
    });
  } catch (const ArrayError&) {
    return {};
  }
  return first.is_discarded() ? nlohmann::json() : first;
}

nlohmann::json parse_json_line(std::string_view line, const std::string& where) {
  try {
    return nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& failure) {
    if (const auto why = why_not_utf8(line, where)) throw DataError(*why);
    if (const auto plain = without_special_numbers(line)) return parse_json_line(*plain, where);
    const JsonError error = json_error(line, failure.byte);
    throw DataError(fmt::format("{}:{}: not JSON: {}", where, error.column, error.what));
  } catch (const nlohmann::json::exception& failure) {  // a number that is too large
    throw DataError(fmt::format("{}: not JSON: {}", where, plain_json_error(failure)));
  }
}

JsonRecord::JsonRecord(std::string_view line, std::string where)
    : where_(std::move(where)), value_(parse_json_line(line, where_)) {
  if (!value_.is_object()) {
    fail(fmt::format("the line is not a JSON object but {}", json_type_of(value_)));
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
    fail(fmt::format("'{}' is not a string but {}", key, json_type_of(value)));
  }
  return value.get<std::string>();
}

void JsonRecord::fail(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", where_, what));
}

void RecordNotes::note_bad(std::string what) {
  ++bad_;
  if (first_bad_.size() < kNamedRecords) first_bad_.push_back(std::move(what));
}

void RecordNotes::ignore_key(const std::string& key) {
  if (ignored_.size() <= kNamedKeys) ignored_.insert(key);
}

void RecordNotes::ignore_keys(const nlohmann::json& object,
                              std::initializer_list<std::string_view> read) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(read.begin(), read.end(), key) == read.end()) ignore_key(key);
  }
}

void RecordNotes::finish() const {
  if (bad_ > 0 && rules_.bad_lines == BadLines::error) {
    const std::string others = bad_ == 1
                                   ? ""
                                   : fmt::format("; {} of the file {} bad, the next one is {}",
                                                 counted(bad_ - 1, "more record"),
                                                 bad_ == 2 ? "is" : "are", first_bad_[1]);
    throw DataError(fmt::format("{}{}; {} skip leaves bad records out", first_bad_.front(), others,
                                rules_.bad_lines_option));
  }
  if (bad_ > 0) {
    log_warning(fmt::format("{}: {} left out: {}{}", path_,
                            bad_ == 1 ? "1 bad record is" : fmt::format("{} bad records are", bad_),
                            fmt::join(first_bad_, "; "),
                            bad_ > static_cast<int64_t>(kNamedRecords) ? "; ..." : ""));
  }
  if (!ignored_.empty()) {
    const bool all = ignored_.size() <= kNamedKeys;
    log_info(fmt::format("{}: keys of its records that are not read: {}{}", path_,
                         fmt::join(ignored_, ", "), all ? "" : ", ..."));
  }
}

}  // namespace fp8train
