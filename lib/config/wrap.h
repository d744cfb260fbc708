#pragma once
// Wraps text for people into lines of a fixed width.

#include <cstddef>
#include <string>

namespace fp8train {

inline constexpr size_t kColumns = 100;

/// Returns the text in lines of at most `columns`, broken at blanks; a longer word stays whole. A
/// line after a break begins like the line before it: with the same blanks and, in a comment, with
/// "# ".
std::string wrapped(const std::string& text, size_t columns = kColumns);

}  // namespace fp8train
