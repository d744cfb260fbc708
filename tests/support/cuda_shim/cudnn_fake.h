#pragma once
// What tests ask of the fake cuDNN of the host shim. It refuses what the library refuses (types,
// head dimensions, strides, one query alone), insists on 16-byte pointers and on the whole
// workspace, and computes through the cpu's operations.

#include <cstddef>
#include <cstdint>

namespace fp8train::shim {

/// Plans made, and calls that they ran, so far.
uint64_t sdpa_plans();
uint64_t sdpa_runs();

/// What backward plans made from now on say that they need.
void set_sdpa_workspace(size_t bytes);

}  // namespace fp8train::shim
