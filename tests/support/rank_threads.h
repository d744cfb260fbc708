#pragma once
// Ranks as threads of a test.

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "comm/backends/backends.h"
#include "comm/backends/rank_threads.h"

namespace fp8train::test {

/// Runs body(communicator) on a thread per rank. What each threw, as text; empty: nothing. Catch's
/// assertions are for the calling thread only.
inline std::vector<std::string> run_ranks(const Topology& topology,
                                          const std::function<void(Communicator&)>& body,
                                          double timeout = 60.0) {
  std::vector<std::string> errors;
  for (const std::exception_ptr& thrown : run_rank_threads(topology, body, timeout)) {
    errors.emplace_back();
    try {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    } catch (const std::exception& error) {
      errors.back() = error.what();
    }
  }
  return errors;
}

}  // namespace fp8train::test
