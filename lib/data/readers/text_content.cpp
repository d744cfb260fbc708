#include "data/readers/text_content.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fp8train {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// The text without a byte order mark and blanks at its beginning.
std::string_view content_of(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text.substr(std::min(text.find_first_not_of(kBlanks), text.size()));
}

/// The bytes of the object or array with which the text begins; all of them if it is not closed.
size_t length_of_first(std::string_view text) {
  int64_t depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      in_text = c != '"';
      i += c == '\\' ? 1 : 0;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return text.size();
}

/// Splits the beginning of a table into rows of columns.
class Rows {
 public:
  Rows(std::string_view text, char separator) : text_(text), separator_(separator) {}

  /// The columns of the next row; nothing at the end. `complete` is set to false if the text ends
  /// within it.
  std::vector<std::string_view> next(bool& complete) {
    std::vector<std::string_view> columns;
    while (at_ < text_.size()) {
      columns.push_back(column());
      if (at_ == text_.size()) break;
      if (text_[at_++] == '\n') return columns;
    }
    complete = false;
    return columns;
  }
  bool is_at_end() const { return at_ >= text_.size(); }

 private:
  /// Stops at the separator or line feed behind it, or at the end.
  std::string_view column() {
    const size_t begin = at_;
    if (at_ < text_.size() && text_[at_] == '"') {
      do {
        at_ = std::min(text_.find('"', at_ + 1), text_.size());
      } while (at_ < text_.size() && at_ + 1 < text_.size() && text_[++at_] == '"');
    }
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n') ++at_;
    std::string_view found = text_.substr(begin, at_ - begin);
    if (found.ends_with('\r')) found.remove_suffix(1);
    if (found.size() > 1 && found.starts_with('"') && found.ends_with('"')) {
      found = found.substr(1, found.size() - 2);
    }
    return found;
  }

  std::string_view text_;
  char separator_;
  size_t at_ = 0;
};

bool is_column_name(std::string_view text) {
  constexpr size_t kMaxName = 64;
  // Of ASCII: lines of Chinese verse have a comma each, and no blanks.
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && text.size() <= kMaxName && (is_letter(text[0]) || text[0] == '_') &&
         std::ranges::all_of(text, [&](char c) {
           return is_letter(c) || is_digit(c) ||
                  std::string_view("_-.").find(c) != std::string_view::npos;
         });
}

bool is_table_of(std::string_view text, bool is_whole, char separator) {
  constexpr size_t kMinRows = 3;
  Rows rows(text, separator);
  bool complete = true;
  std::vector<std::string_view> names = rows.next(complete);
  if (!complete || names.size() < 2 || !std::ranges::all_of(names, is_column_name)) return false;
  const size_t columns = names.size();
  std::ranges::sort(names);
  if (std::ranges::adjacent_find(names) != names.end()) return false;
  size_t count = 1;
  while (!rows.is_at_end()) {
    const std::vector<std::string_view> row = rows.next(complete);
    if (!complete && !is_whole) break;
    if (row.size() == 1 && row[0].empty()) continue;
    if (row.size() != columns) return false;
    ++count;
  }
  return count >= kMinRows;
}

}  // namespace

JsonKind json_kind(std::string_view text, bool is_whole) {
  text = content_of(text);
  if (!text.starts_with('{') && !text.starts_with('[')) return JsonKind::none;
  const size_t length = length_of_first(text);
  const std::string_view rest = content_of(text.substr(length));
  if (!rest.empty() && (text[0] == '[' || rest[0] != '{')) return JsonKind::none;
  const std::string_view first = text.substr(0, length);
  size_t found = 0;  // keys and values
  std::optional<size_t> failed_at;
  const auto count = [&](int /*depth*/, nlohmann::json::parse_event_t event, nlohmann::json&) {
    using Event = nlohmann::json::parse_event_t;
    found += event == Event::key || event == Event::value ? 1 : 0;
    return true;
  };
  try {
    const nlohmann::json unread = nlohmann::json::parse(first, count);
  } catch (const nlohmann::json::parse_error& error) {
    failed_at = error.byte;
  } catch (const nlohmann::json::exception&) {  // a number that is too large
    failed_at = 0;
  }
  // The end may cut a character in two.
  constexpr size_t kMaxCharacter = 4;
  const bool is_cut =
      length == text.size() && !is_whole && failed_at && *failed_at + kMaxCharacter > length;
  if (found == 0 || (failed_at && !is_cut)) return JsonKind::none;
  return text[0] == '{' ? JsonKind::objects : JsonKind::array;
}

bool is_table(std::string_view text, bool is_whole) {
  text = content_of(text);
  return std::ranges::any_of(std::string_view(",;\t"), [&](char separator) {
    return is_table_of(text, is_whole, separator);
  });
}

}  // namespace fp8train
