#pragma once
// Small pieces of messages.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// "1 document", "2 documents".
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// The parts between separators; of an empty text one empty part.
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
