#include "data/tokenizers/metaspace.h"

#include <fmt/format.h>

#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {

Metaspace read_metaspace(const JsonPart& part) {
  part.only({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Metaspace settings;
  settings.replacement = part.text_or("replacement", kSpaceMark);
  if (settings.replacement.empty() ||
      code_point_at(settings.replacement, 0).bytes != settings.replacement.size()) {
    part.refuse("the replacement is not one character");
  }
  const std::string scheme =
      part.text_or("prepend_scheme", part.flag_or("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") {
    settings.prepend = Metaspace::Prepend::always;
  } else if (scheme == "first") {
    settings.prepend = Metaspace::Prepend::first;
  } else if (scheme == "never") {
    settings.prepend = Metaspace::Prepend::never;
  } else {
    part.refuse(
        fmt::format("unknown prepend_scheme '{}' (expected always, first or never)", scheme));
  }
  settings.splits = part.flag_or("split", true);
  return settings;
}

}  // namespace fp8train::tokenizers
