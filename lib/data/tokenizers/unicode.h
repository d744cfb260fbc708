#pragma once
// Unicode for tokenizers: properties, normal forms, case. Properties and normal forms are those of
// utf8proc. Texts are well-formed UTF-8 except where a function says otherwise.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8train::tokenizers {

/// A code point and the number of bytes that it has in a text.
struct CodePoint {
  char32_t value;
  size_t bytes;
};

/// Returns the code point that begins at byte `position`, which is inside of `text`.
CodePoint code_point_at(std::string_view text, size_t position);

/// Returns the code point that begins at byte `position` of bytes that may be anything, or value 0
/// and one byte if they are not a whole code point.
CodePoint whole_code_point_at(std::string_view bytes, size_t position);
/// Returns the code point that ends at byte `end` > 0 in the same way.
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

/// Appends a code point to `text`.
void append_utf8(std::string& text, char32_t code_point);

/// Returns `bytes` as well-formed UTF-8: bytes that are not become U+FFFD, one for each maximal
/// part of a code point, as Python's errors="replace" does (Unicode standard, section 3.9,
/// "substitution of maximal subparts").
std::string well_formed(std::string_view bytes);

bool is_ascii(std::string_view text);
bool is_white_space(char32_t c);  ///< property White_Space
bool is_punctuation(char32_t c);  ///< ASCII punctuation, and categories P*
/// Whether the category is L* and no normal form changes the character. Hangul syllables count too,
/// since normal forms change them to letters.
bool is_stable_letter(char32_t c);
/// Whether is_punctuation() holds and no normal form changes the character.
bool is_stable_punctuation(char32_t c);
bool is_letter(char32_t c);  ///< categories L*
bool is_number(char32_t c);  ///< categories N*
/// Whether \w of Unicode technical standard 18, annex C, has the character: letters, marks, decimal
/// numbers, connectors, joiners.
bool is_word(char32_t c);
bool is_mark(char32_t c);             ///< categories M*
bool is_nonspacing_mark(char32_t c);  ///< category Mn
bool is_control(char32_t c);          ///< categories C*

/// Returns the number of bytes of white space, or of what `is_space` says, that `text` begins with.
/// `text` may be any bytes.
template <typename IsSpace = bool (*)(char32_t)>
size_t spaces_at_start(std::string_view text, IsSpace is_space = is_white_space) {
  size_t end = 0;
  while (end < text.size()) {
    const CodePoint c = whole_code_point_at(text, end);
    if (!is_space(c.value)) break;
    end += c.bytes;
  }
  return end;
}
/// Returns the byte at which the same at the end of `text` begins. `text` may be any bytes.
template <typename IsSpace = bool (*)(char32_t)>
size_t without_spaces_at_end(std::string_view text, IsSpace is_space = is_white_space) {
  size_t end = text.size();
  while (end > 0) {
    const CodePoint c = code_point_before(text, end);
    if (!is_space(c.value)) break;
    end -= c.bytes;
  }
  return end;
}

/// The normal forms of Unicode standard annex 15.
enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// Changes `text` to a normal form. Throws std::bad_alloc.
void normalize(std::string& text, NormalForm form);

char32_t upper_case(char32_t c);  ///< as one code point
/// Returns `text` in lower case, code point by code point, without the rules of a language.
std::string lower_case(std::string_view text);

}  // namespace fp8train::tokenizers
