#pragma once
// Ends a rank that hangs. A thread reads the rank's records (base/flight_recorder.h): if a section
// makes no progress within its limit, it writes the rank's flight record, ends the other ranks and
// then the process with exit code 86. A wait for other ranks that reaches comm.timeout throws
// TimeoutError instead, whose report is made here too. Time in which the process is stopped or
// suspended does not count.

#include <array>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
#include "comm/communicator.h"
#include "config/settings.h"

namespace fp8train {

/// The data by which a rank is found.
struct RankIdentity {
  int32_t process = 0;
  std::array<char, 64> host = {};
};

/// The process's exit code when a section took too long or a wait for other ranks was given up.
inline constexpr int kExitWatchdog = 86;

/// Ends a process that hangs, and its other ranks, and writes a record of what it was doing.
class RunWatchdog {
 public:
  /// Records what the calling thread does from now on, and watches it until the end of the process;
  /// a thread is started unless all limits are 0. Flight records go to `folder` if it exists by
  /// then. Called once in a process. Returns an object that is never destroyed.
  static RunWatchdog& start(const WatchdogSettings& limits, const std::filesystem::path& folder);

  /// Tells all ranks how to find each other, so that a rank which ends can end the others too.
  /// Lasts until it is called with null. Collective, unless `comm` is null.
  void watch_ranks(Communicator* comm);

  FlightRecorder& recorder() { return recorder_; }

  /// A wait for other ranks was given up for the reason `why`: writes the flight record, unless the
  /// folder does not exist or the file system does not answer, and returns the whole message. Takes
  /// a second more, so that other ranks can write theirs.
  std::string report_failed_wait(const std::string& why);

 private:
  RunWatchdog(const WatchdogSettings& limits, std::filesystem::path folder);

  [[noreturn]] void watch(double interval);
  [[noreturn]] void expire(const FlightState& state);
  std::string report(const FlightState& state, const std::string& why);
  std::string store(int rank, const std::string& record) const;
  void end_other_ranks();

  FlightRecorder recorder_;
  std::filesystem::path folder_;
  std::mutex mutex_;  // protects the members that follow
  Communicator* comm_ = nullptr;
  int rank_ = 0;
  RankIdentity identity_;
  std::vector<RankIdentity> ranks_;  // empty: they have not met yet
};

}  // namespace fp8train
