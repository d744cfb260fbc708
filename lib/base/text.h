#pragma once
// Functions on texts that messages and parsers share: they split, join, trim and replace.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace fp8train {

/// Returns "1 document", "2 documents".
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// Returns the parts between separators; an empty text has one empty part.
inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// `text` with `to` for each `from`, which is not empty.
inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return result.append(text, done);
}

/// Returns `text` as one word of a shell: as it is where it has letters, digits and
/// `_ . / - + = : , @ %` alone, else in quotes.
inline std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyz"
                                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_./-+=:,@%") == std::string::npos;
  return plain ? text : "'" + replaced(text, "'", "'\\''") + "'";
}

/// The text without blanks, tabs and carriage returns at its start and end.
inline std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
}

/// Returns the text with a to z for A to Z; other bytes stay.
inline std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

/// Returns the number whose decimal digits are `text`; nothing if it has another character, a sign
/// or a blank included, or if a Number does not hold it.
template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  if (text.starts_with('-')) return std::nullopt;  // "-0" would be read as 0
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

/// "a, b, c". `text_of` is a function or a member that gives the text of an item.
template <typename Items, typename TextOf = std::identity>
std::string joined(const Items& items, TextOf text_of = {}) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ", ";
    text += std::invoke(text_of, item);
  }
  return text;
}

/// The first `shown` items of a longer list, with "and 4 more" after them.
inline std::vector<std::string> shortened(std::vector<std::string> items, size_t shown) {
  if (items.size() <= shown) return items;
  const std::string rest = fmt::format("and {} more", items.size() - shown);
  items.resize(shown);
  items.push_back(rest);
  return items;
}

/// "a", "a or b", "a, b or c".
template <typename Names>
std::string alternatives(const Names& names) {
  std::string text;
  size_t left = std::size(names);
  for (const auto& name : names) {
    text += name;
    text += --left == 0 ? "" : left == 1 ? " or " : ", ";
  }
  return text;
}

}  // namespace fp8train
