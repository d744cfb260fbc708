#include "data/tokenizers/pattern.h"

namespace fp8train::tokenizers {

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
