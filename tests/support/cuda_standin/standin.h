#pragma once
// What tests of the stand-in runtime ask of it.

#include <string>
#include <vector>

namespace fp8train::standin {

/// The refused calls so far, as "function: why"; they are forgotten and not reported at the end.
std::vector<std::string> take_refusals();

}  // namespace fp8train::standin
