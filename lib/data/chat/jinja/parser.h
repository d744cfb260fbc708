#pragma once
// Templates as text to trees (Jinja 3, parser.py).

#include <set>
#include <string>
#include <string_view>

#include "data/chat/jinja/ast.h"

namespace fp8train::jinja {

/// Returns the names of a template's expressions, which may be those of its variables, without
/// reading it further. Throws as parse() does.
std::set<std::string> names_in(std::string_view source, const std::string& where);

/// Returns the statements of a template of at most 1 MiB, in which expressions and statements are
/// nested at most 100 levels deep. Throws ConfigError.
Body parse(std::string_view source, const std::string& where);

}  // namespace fp8train::jinja
