#pragma once
// "Did you mean": the nearest known name, and the right place for names people bring from
// elsewhere.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// Number of single-character insertions, deletions and replacements between two names.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that equals `name` apart from case, hyphens and underscores, else the nearest one
/// within two edits (fewer for short names); empty when nothing is near. The first wins a tie.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// What to say about an unknown key: a sentence such as `did you mean "lr"?`, or empty. `section`
/// is the dotted section the key stands in, empty at the top level.
std::string advice_for_unknown_key(const std::string& section, const std::string& name);

}  // namespace fp8train
