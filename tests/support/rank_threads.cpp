#include "support/rank_threads.h"

#include <exception>
#include <thread>

namespace fp8train::test {

std::vector<std::string> run_ranks(const Topology& topology,
                                   const std::function<void(Communicator&)>& body, double timeout) {
  const auto ranks = make_thread_ranks(topology);
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ranks[rank]->set_timeout(timeout);
        body(*ranks[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        ranks[rank]->fail(1);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

}  // namespace fp8train::test
