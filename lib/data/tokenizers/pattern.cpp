#include "data/tokenizers/pattern.h"

#include <fmt/format.h>

#include "base/error.h"

namespace fp8train::tokenizers {

void refuse_growth(const std::string& where, size_t most) {
  throw DataError(fmt::format(
      "{}: it makes a text longer than {} bytes (64 times its length and 64 KiB)", where, most));
}

Pattern::Pattern(const JsonPart& part) {
  if (part.has("Regex")) {
    expression_ = part.text("Regex");
    regex_.emplace(expression_, part.where());
  } else if (part.has("String")) {
    literal_ = part.text("String");
    if (literal_.empty()) part.refuse("an empty string matches nothing");
  } else {
    part.refuse("a pattern is {\"String\": ...} or {\"Regex\": ...}");
  }
}

}  // namespace fp8train::tokenizers
