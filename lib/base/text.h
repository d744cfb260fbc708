#pragma once
// Small pieces of messages.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace fp8train {

/// "1 document", "2 documents".
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
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
