#pragma once
// Ranks as threads of a test.

#include <functional>
#include <string>
#include <vector>

#include "comm/backends/backends.h"

namespace fp8train::test {

/// Runs body(communicator) on a thread per rank. What each threw, as text; empty: nothing. Catch's
/// assertions are for the calling thread only.
std::vector<std::string> run_ranks(const Topology& topology,
                                   const std::function<void(Communicator&)>& body,
                                   double timeout = 60.0);

}  // namespace fp8train::test
