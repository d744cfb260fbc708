#pragma once
// The environment variables of this program whose values runs may refuse.

#include <string>

namespace fp8train {

/// Returns the level of the processor's instructions, which one of them may lower; says so where
/// its value is wrong.
std::string cpu_level();
/// Returns those that are set, with their values.
std::string set_variables();
/// Returns what to do about values that a run refuses; empty: there are none.
std::string fix_of_variables();

}  // namespace fp8train
