#pragma once
// The filters of lists.

#include "data/chat/jinja/interpreter.h"

namespace fp8train::jinja {

/// Null where there is none of this name.
const FilterEntry* find_list_filter(std::string_view name);

}  // namespace fp8train::jinja
