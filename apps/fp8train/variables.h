#pragma once
// The environment variables of this program that have a choice of values.

#include <string>

namespace fp8train {

/// Returns those that are set, with their values.
std::string set_variables();
/// Returns what to do about values that a run refuses; empty: there are none.
std::string fix_of_variables();

}  // namespace fp8train
