#pragma once
// What tests ask of the fake cuDNN of the host shim. It refuses what the library refuses (types,
// head dimensions, strides, one query alone), insists on 16-byte pointers and on the whole
// workspace, and computes through the cpu's operations. A backward pass that is not asked to be
// deterministic is not.

#include <cstddef>
#include <cstdint>

namespace fp8train::shim {

/// Plans made, and calls that they ran, so far.
uint64_t sdpa_plans();
uint64_t sdpa_runs();
/// Those of the plans that are for a deterministic backward pass.
uint64_t deterministic_sdpa_plans();

/// Whether there is no cuDNN for the devices that use attention first from now on.
void hide_sdpa(bool hidden);

/// What backward plans made from now on say that they need; deterministic ones say two bytes more
/// for each score.
void set_sdpa_workspace(size_t bytes);

}  // namespace fp8train::shim
