#pragma once
// The byte-level alphabet of GPT-2 (openai/gpt-2, src/encoder.py, bytes_to_unicode): each byte is
// spelled as a visible character.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fp8train::tokenizers {

/// The character of a byte.
char32_t byte_character(uint8_t byte);

/// `bytes` in the alphabet.
std::string spelled(std::string_view bytes);

/// The bytes that `text` spells; nothing where a character is not of the alphabet.
std::optional<std::string> unspelled(std::string_view text);

/// "<0x0A>": the token of a byte in vocabularies of characters.
std::string byte_token(uint8_t byte);

/// The byte that such a token, also with small letters, is of.
std::optional<uint8_t> byte_of_token(std::string_view token);

}  // namespace fp8train::tokenizers
