#pragma once
// Names of other programs' keys: the key here that does the same, or what is not here and what does
// its work instead. The one table for unknown keys, for refused files and for the page.

#include <span>
#include <string>
#include <string_view>

namespace fp8train {

inline constexpr const char* kWeightsStay = " (weights that GEMMs read stay on the GPU)";

struct ForeignName {
  std::string_view names;     ///< with blanks between them; `lora*` is every name that begins so
  std::string_view key;       ///< ours, or an advice when it holds a blank; empty: not here
  std::string_view not_here;  ///< why, a semicolon, and what there is instead
};

std::span<const ForeignName> foreign_names();

/// Returns the entry of a key's name, whatever its case, hyphens and underscores; null if there is
/// none.
const ForeignName* find_foreign_name(std::string_view name);

/// Returns the one key here that a key's name of another program, or that name itself, stands for,
/// or nothing.
std::string key_of_foreign_name(const std::string& name);

/// Returns advice about an unknown key: a sentence such as `did you mean "lr"?`, or nothing.
/// `section` is the dotted section the key is in, empty at the top level.
std::string advice_for_unknown_key(const std::string& section, const std::string& name);

}  // namespace fp8train
