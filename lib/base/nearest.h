#pragma once
// "Did you mean": the nearest of some known names.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// `name` in lower case, without hyphens and underscores.
std::string simplified(std::string_view name);

/// Number of single-character insertions, deletions and replacements between two names.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that equals `name` apart from case, hyphens and underscores, else the nearest one
/// within two edits (fewer for short names); empty when nothing is near. The first wins a tie.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace fp8train
