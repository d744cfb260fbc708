#pragma once
// Unicode for tokenizers: properties, normal forms, case. Properties and normal forms are those of
// utf8proc. Texts are well-formed UTF-8 except where a function says otherwise.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8train::tokenizers {

struct CodePoint {
  char32_t value;
  size_t bytes;
};

/// The code point that begins at byte `position`, which is inside of `text`.
CodePoint code_point_at(std::string_view text, size_t position);

/// The one there, and the one that ends at byte `end` > 0, of bytes that may be anything: value 0
/// where they are not a whole code point.
CodePoint whole_code_point_at(std::string_view bytes, size_t position);
CodePoint code_point_before(std::string_view bytes, size_t end);

/// Calls visit(CodePoint, size_t position) for all of `text`, in order.
template <typename Visit>
void for_each_code_point(std::string_view text, const Visit& visit) {
  for (size_t position = 0; position < text.size();) {
    const CodePoint c = code_point_at(text, position);
    visit(c, position);
    position += c.bytes;
  }
}

void append_utf8(std::string& text, char32_t code_point);

/// Bytes that are not UTF-8 become U+FFFD, one for each maximal part of a code point, as Python's
/// errors="replace" does (Unicode standard, section 3.9, "substitution of maximal subparts").
std::string well_formed(std::string_view bytes);

bool is_ascii(std::string_view text);
bool is_white_space(char32_t c);  ///< property White_Space
bool is_punctuation(char32_t c);  ///< ASCII punctuation, and categories P*
/// Categories L*, and no normal form changes it, but for Hangul syllables, which become letters.
bool is_stable_letter(char32_t c);
/// Whether is_punctuation() holds and no normal form changes the character.
bool is_stable_punctuation(char32_t c);
bool is_number(char32_t c);  ///< categories N*
/// \w of Unicode technical standard 18, annex C: alphabetic, marks, decimal numbers, connectors,
/// joiners.
bool is_word(char32_t c);
bool is_mark(char32_t c);             ///< categories M*
bool is_nonspacing_mark(char32_t c);  ///< category Mn
bool is_control(char32_t c);          ///< categories C*

/// Bytes of white space that `text` begins with, and where that at its end begins.
size_t spaces_at_start(std::string_view text, bool (*is_space)(char32_t) = is_white_space);
size_t without_spaces_at_end(std::string_view text, bool (*is_space)(char32_t) = is_white_space);

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// Unicode standard annex 15.
void normalize(std::string& text, NormalForm form);

/// Code point by code point, without the rules of a language.
std::string lower_case(std::string_view text);

}  // namespace fp8train::tokenizers
