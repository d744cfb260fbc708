#pragma once
// Upper and lower case as in Python's str, but for the small sigma at the end of a word.

#include <cstddef>
#include <string>
#include <string_view>

namespace fp8train::jinja {

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// Letters behind one that is none in upper case, others in lower case: str.title().
std::string title(std::string_view text);
/// The first letter in upper case, others in lower case.
std::string capitalized(std::string_view text);
/// The first letter of what follows white space or one of -([{< in upper case, others in lower
/// case: Jinja's filter `title`.
std::string titled_words(std::string_view text);

bool is_digits(std::string_view text);  ///< of ASCII, at least one
bool is_spaces(std::string_view text);  ///< at least one

/// The byte behind the first word, up to white space.
size_t end_of_first_word(std::string_view text);
/// The byte at which the last word begins.
size_t start_of_last_word(std::string_view text);

}  // namespace fp8train::jinja
