#pragma once
// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <string>
#include <string_view>

namespace fp8train {

/// Whether `c` is a byte of a code point other than its first.
inline bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// Returns the number of bytes of the well-formed code point at `position`, or 0 when the bytes
/// there are not one.
size_t code_point_length(std::string_view text, size_t position);

/// Returns the number of bytes to replace together where code_point_length() is 0 inside of `text`:
/// the maximal part of a code point (Unicode standard, section 3.9), at least 1.
size_t damaged_length(std::string_view text, size_t position);

/// Whether `text` is well-formed from end to end.
bool is_utf8(std::string_view text);

/// Returns `text` without a code point that its end cuts in two.
std::string_view without_cut_end(std::string_view text);

/// Returns the bytes in a form fit for a message: printable ASCII as it is, everything else as
/// <0xXX>.
std::string printable(std::string_view bytes);

}  // namespace fp8train
