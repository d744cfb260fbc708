#pragma once
// The byte-level alphabet of GPT-2 (openai/gpt-2, src/encoder.py, bytes_to_unicode): each byte is
// spelled as a visible character.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fp8train::tokenizers {

/// Returns the character of a byte.
char32_t byte_character(uint8_t byte);

/// Returns `bytes` in the alphabet, as UTF-8.
std::string spelled(std::string_view bytes);

/// Returns the bytes that `text` spells, or nothing if a character is not of the alphabet.
std::optional<std::string> unspelled(std::string_view text);

/// Returns the token of a byte in vocabularies of characters: "<0x0A>".
std::string byte_token(uint8_t byte);

/// Returns the byte of such a token, which may have small letters, or nothing for another text.
std::optional<uint8_t> byte_of_token(std::string_view token);

}  // namespace fp8train::tokenizers
