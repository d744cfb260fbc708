#pragma once
// "Did you mean": the nearest of some known names, or the nearest number that works.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// `name` in lower case, without hyphens and underscores.
std::string simplified(std::string_view name);

/// The candidate that equals `name` apart from case, hyphens and underscores, else the nearest one
/// within two edits, of names of less than six letters within one: a letter more, less or another,
/// or two neighbours exchanged. Letters are counted without hyphens and underscores; a single
/// letter has no nearest name, nor has a text of more than 64 characters. Empty when nothing is
/// near. The first wins a tie.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// The nearest candidate; where none is near, those that begin with `name`, else those that have
/// its first part, up to a hyphen or an underscore.
std::vector<std::string> nearest_names(std::string_view name,
                                       const std::vector<std::string>& candidates);

/// Returns the divisor of `count` that is nearest to `wanted`; of two, the smaller. Both are above
/// 0.
int64_t nearest_divisor(int64_t count, int64_t wanted);

}  // namespace fp8train
