#pragma once
// Ranks as threads of one process: for tests, and to compare layouts of ranks on one machine.

#include <exception>
#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace fp8train {

/// Runs body(communicator) on a thread per rank, and returns what each threw; null: nothing. A rank
/// that throws ends the exchanges of the others with CommError.
std::vector<std::exception_ptr> run_rank_threads(const Topology& topology,
                                                 const std::function<void(Communicator&)>& body,
                                                 double timeout);

}  // namespace fp8train
