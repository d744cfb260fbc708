#pragma once
// The report about a rank that hangs: what it and the other ranks of its machine were doing, as one
// line for people and as JSON (docs/use/hangs.md).

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flight_recorder.h"

namespace fp8train {

/// How a rank is found by others of its machine.
struct RankIdentity {
  int32_t process = 0;
  std::array<char, 64> host = {};
  uint64_t recorder = 0;  ///< FlightRecorder::address()
};
RankIdentity identity_of_this_rank(const FlightRecorder& recorder);

/// Another rank, as far as it can be seen from here.
struct ObservedRank {
  int rank = 0;
  RankIdentity identity;
  std::string process_state;         ///< "running", "sleeping", "stopped", ...; empty: not seen
  std::optional<FlightState> state;  ///< nothing: on another machine, or ended

  /// It does not wait for others: it is stopped, has ended, or does something of its own.
  bool holds_others_up() const;
};
std::vector<ObservedRank> observe_others(const std::vector<RankIdentity>& ranks, int own_rank);

/// "step 7, in exchange for 5.1 s (all_to_all 31 of communicator 2, 4096 bytes)"
std::string describe(const FlightState& state);
/// "rank 1 (process 124 on n1, stopped): step 7, in data for 5.2 s", of those that hold others up,
/// or of all where none does; empty where none can be seen.
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
