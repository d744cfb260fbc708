#pragma once
// Texts of a chat template that remember which of their bytes come from which message.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train::jinja {

/// Bytes of a text that come from a message. An empty one marks where a message without text is.
struct Span {
  size_t begin = 0, end = 0;
  int32_t message = 0;  ///< its index in the dialogue

  bool operator==(const Span&) const = default;
};

/// A text in UTF-8, and its parts that come from messages: in order, apart from each other. Bytes
/// outside of them are the template's own.
struct Text {
  std::string bytes;
  std::vector<Span> spans;
  bool is_markup = false;  ///< what `safe` and `escape` give: what is added to it is escaped

  Text() = default;
  Text(std::string text) : bytes(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  /// Of one message; below 0: of none.
  Text(std::string text, int32_t message) : bytes(std::move(text)) {
    if (message >= 0) spans = {{0, bytes.size(), message}};
  }

  /// Appends another text, with its parts.
  void append(const Text& other);
  /// Returns bytes [begin, end).
  Text slice(size_t begin, size_t end) const;
  /// Returns the text with < as &lt; and so on, as markup, which is not escaped again.
  Text escaped() const;
  /// Returns `changed`, made of the whole of this text: of the same length with the same parts,
  /// else as one part of the first message that this text has one of.
  Text changed_to(std::string changed) const;
};

/// White space as Python's str.strip() has it: that of Unicode and four control characters.
bool is_python_space(char32_t c);
/// Returns `text` without what str.strip(), lstrip() and rstrip() remove: white space or, where
/// `characters` is not null, these code points.
Text stripped(const Text& text, bool at_start, bool at_end,
              const std::string* characters = nullptr);
/// Returns where `part` is in `text` from byte `from` on, or npos. In linear time.
size_t find_in(std::string_view text, std::string_view part, size_t from);
/// Returns the number of code points.
int64_t length_of(std::string_view text);
/// Returns the byte at which the code point `index` begins; the size where there are fewer.
size_t byte_of(std::string_view text, int64_t index);

// Upper and lower case as in Python's str, but for the small sigma at the end of a word.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// Letters behind one that is none in upper case, others in lower case: str.title().
std::string title(std::string_view text);
/// The first letter in upper case, others in lower case.
std::string capitalized(std::string_view text);
/// The first letter of what follows white space or one of -([{< in upper case, others in lower
/// case: Jinja's filter `title`.
std::string titled_words(std::string_view text);

}  // namespace fp8train::jinja
