#include "data/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace fp8train {
namespace {

struct Utf8Part {
  size_t bytes;  ///< 0 where no code point begins
  bool whole;
};

/// The longest part of a well-formed code point at `position`, inside of `text` (Unicode standard,
/// table 3-7).
Utf8Part part_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {0, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const size_t end = std::min(length, text.size() - position);
  // The second byte of some leads is limited.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  size_t bytes = 1;
  while (bytes < end && byte(bytes) >= low && byte(bytes) <= high) {
    ++bytes;
    low = 0x80;
    high = 0xBF;
  }
  return {bytes, bytes == length};
}

}  // namespace

size_t code_point_length(std::string_view text, size_t position) {
  if (position >= text.size()) return 0;
  const Utf8Part part = part_at(text, position);
  return part.whole ? part.bytes : 0;
}

size_t damaged_length(std::string_view text, size_t position) {
  return std::max<size_t>(1, part_at(text, position).bytes);
}

bool is_utf8(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    const size_t length = code_point_length(text, position);
    if (length == 0) return false;
    position += length;
  }
  return true;
}

std::string_view without_cut_end(std::string_view text) {
  constexpr size_t kLongest = 4;
  size_t end = text.size();
  while (end > 0 && text.size() - end < kLongest - 1 && is_continuation(text[end - 1])) {
    --end;
  }
  const bool ends_cut = end > 0 && code_point_length(text, end - 1) == 0;
  return ends_cut ? text.substr(0, end - 1) : text;
}

std::string printable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    text += byte >= 0x20 && byte < 0x7F ? std::string(1, c) : fmt::format("<0x{:02X}>", byte);
  }
  return text;
}

}  // namespace fp8train
