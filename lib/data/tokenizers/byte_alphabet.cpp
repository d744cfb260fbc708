#include "data/tokenizers/byte_alphabet.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

constexpr char32_t kFirstReplacement = 0x100;
constexpr size_t kCharacters = 0x144;  // the highest is U+0143

constexpr bool shows_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet = {};
  char32_t next = kFirstReplacement;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[static_cast<size_t>(byte)] = shows_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return alphabet;
}

constexpr std::array<char32_t, 256> kAlphabet = make_alphabet();

constexpr std::array<int16_t, kCharacters> make_bytes() {
  std::array<int16_t, kCharacters> bytes = {};
  for (int16_t& byte : bytes) byte = -1;
  for (size_t byte = 0; byte < kAlphabet.size(); ++byte) {
    bytes[kAlphabet[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, kCharacters> kByteOf = make_bytes();

}  // namespace

char32_t byte_character(uint8_t byte) {
  return kAlphabet[byte];
}

std::string spelled(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(text, byte_character(static_cast<uint8_t>(c)));
  return text;
}

std::optional<std::string> unspelled(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const CodePoint c = code_point_at(text, position);
    if (c.value >= kCharacters || kByteOf[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[c.value]));
    position += c.bytes;
  }
  return bytes;
}

std::string byte_token(uint8_t byte) {
  return fmt::format("<0x{:02X}>", byte);
}

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return {};
  uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
  return error == std::errc() && stop == end ? std::optional(byte) : std::nullopt;
}

}  // namespace fp8train::tokenizers
