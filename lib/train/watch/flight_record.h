#pragma once
// The report about a rank that hangs: the state of this rank, and which processes the others are,
// as one line for people and as JSON (docs/use/hangs.md).

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/flight_recorder.h"
#include "base/names.h"

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

/// The state of a process that did not get on, as it is written for the user.
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

}  // namespace fp8train
