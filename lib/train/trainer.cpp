#include "train/trainer.h"

#include <functional>
#include <utility>

#include "base/error.h"
#include "config/load.h"
#include "train/rank_device.h"
#include "train/ranks.h"
#include "train/run.h"
#include "train/watch/run_watchdog.h"

namespace fp8train {
namespace {

RunOutcome train_on_ranks(const RunRequest& request, Communicator& comm) {
  bool reported = false;
  const auto with_report = [&](const std::function<RunOutcome()>& body) {
    try {
      return body();
    } catch (const TimeoutError& error) {
      if (request.watchdog == nullptr || std::exchange(reported, true)) {
        throw;
      }
      throw TimeoutError(request.watchdog->report_failed_wait(error.what()));
    }
  };
  return with_report([&] {
    agree_on_run(comm, request.resolved_yaml + request.version);  // before they go separate ways
    RunOutcome outcome = RunOutcome::finished;
    {
      RankDevice rank_device = take_device(request.settings, comm);
      Communicator& ranks = rank_device.comm != nullptr ? *rank_device.comm : comm;
      const WatchedRanks watched(request.watchdog, ranks);
      Run run(request, ranks, rank_device);
      const EndSection end;
      try {
        outcome = with_report([&] { return run.run(); });
      } catch (...) {
        // What follows waits for the thread that writes a checkpoint.
        run.release_lock();
        if (request.end_other_ranks) {
          request.end_other_ranks();
        }
        run.publish_save_in_flight();
        throw;
      }
    }
    wait_for_first_rank(comm);  // and all others: a rank that hangs at its end is seen by all
    return outcome;
  });
}

}  // namespace

RunOutcome train(const RunRequest& request, Communicator& comm) {
  return with_locations(request.settings, [&] { return train_on_ranks(request, comm); });
}

}  // namespace fp8train
