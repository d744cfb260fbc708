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
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/flight_recorder.h"
#include "base/names.h"
#include "comm/communicator.h"
#include "config/settings.h"

namespace fp8train {

/// The data by which a rank is found.
struct RankIdentity {
  int32_t process = 0;
  std::array<char, 64> host = {};
};
/// Returns the identity of this process.
RankIdentity identity_of_this_rank();

/// The state of a process as the operating system reports it.
enum class ProcessState : uint8_t { running, sleeping, waiting_for_disk, stopped, ended };
inline constexpr std::pair<ProcessState, std::string_view> kProcessStates[] = {
    {ProcessState::running, "running"},
    {ProcessState::sleeping, "sleeping"},
    {ProcessState::waiting_for_disk, "waiting for a disk"},
    {ProcessState::stopped, "stopped"},
    {ProcessState::ended, "ended"}};

/// Another rank, as far as it can be seen from here.
struct ObservedRank {
  int rank = 0;
  RankIdentity identity;
  std::optional<ProcessState> process_state;  ///< nothing: on another machine

  /// Whether it is stopped or has ended.
  bool is_halted() const {
    return process_state == ProcessState::stopped || process_state == ProcessState::ended;
  }
};
/// Looks at all ranks but `own_rank`. Ranks on other machines have their identity only.
std::vector<ObservedRank> observe_others(const std::vector<RankIdentity>& ranks, int own_rank);

/// Returns "step 7, in exchange for 5.1 s (all_to_all 31 of communicator 2, 4096 bytes)".
std::string describe(const FlightState& state);
/// Returns "rank 1 (process 124 on n1, stopped)", for the ranks that are halted, or for all if none
/// is. Names four ranks at most, and counts the others. Empty if there are no others.
std::string describe(const std::vector<ObservedRank>& others);

/// The state of a process that did not get on, as it is written for the user (docs/use/hangs.md).
struct FlightRecord {
  std::string reason;
  int rank = 0;
  int ranks = 0;  ///< 0: the ranks have not met yet
  RankIdentity identity;
  FlightState state;
  std::vector<ObservedRank> others;
};
/// Returns the record as indented JSON.
std::string to_json(const FlightRecord& record);

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
  std::string store(const FlightRecord& record) const;
  void end_other_ranks();

  FlightRecorder recorder_;
  std::filesystem::path folder_;
  std::mutex mutex_;  // protects the members that follow
  Communicator* comm_ = nullptr;
  int rank_ = 0;
  RankIdentity identity_;
  std::vector<RankIdentity> ranks_;  // empty: they have not met yet
};

/// While this object lives, the watchdog ends the ranks of `comm` too. Collective.
class WatchedRanks {
 public:
  /// `watchdog` may be null: nothing is watched then.
  WatchedRanks(RunWatchdog* watchdog, Communicator& comm);
  ~WatchedRanks();
  WatchedRanks(const WatchedRanks&) = delete;
  WatchedRanks& operator=(const WatchedRanks&) = delete;

 private:
  RunWatchdog* watchdog_;
};

/// Its destructor tells the flight recorder of the calling thread that the run is at its end
/// (Section::end).
class EndSection {
 public:
  EndSection() = default;
  ~EndSection();
  EndSection(const EndSection&) = delete;
  EndSection& operator=(const EndSection&) = delete;
};

}  // namespace fp8train
