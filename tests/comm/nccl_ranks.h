#pragma once
// Ranks on GPUs as threads of a test.

#include <functional>
#include <string>
#include <vector>

#include "comm/backends/backends.h"
#include "device/device.h"

namespace fp8train::test {

/// GPUs for ranks: those that are here, or as many as are asked for on the host shim. Warns and
/// returns 0 where there are none to use.
int gpus_for_ranks(int wanted);

/// Runs body(NCCL's communicator, its device, the threads' communicator) on a thread per rank, each
/// on a GPU of its own. What each threw, as text.
using NcclBody = std::function<void(Communicator&, Device&, Communicator&)>;
std::vector<std::string> run_nccl_ranks(const Topology& topology, const NcclBody& body,
                                        double timeout = 60.0);

}  // namespace fp8train::test
