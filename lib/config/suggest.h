#pragma once
// "Did you mean" for keys: the nearest known one, or the key that stands for a name of another
// program.

#include <string>

#include "base/nearest.h"

namespace fp8train {

/// Returns the one key here that a key's name of another program, or that name itself, stands for,
/// or nothing.
std::string key_of_foreign_name(const std::string& name);

/// Returns advice about an unknown key: a sentence such as `did you mean "lr"?`, or nothing.
/// `section` is the dotted section the key is in, empty at the top level.
std::string advice_for_unknown_key(const std::string& section, const std::string& name);

}  // namespace fp8train
