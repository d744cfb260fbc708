#pragma once
// The report about a rank that hangs, as one line for people and as JSON (docs/use/hangs.md).

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/flight_recorder.h"

namespace fp8train {

/// Where a rank runs.
struct RankIdentity {
  int32_t process = 0;
  std::array<char, 64> host = {};
};
/// Returns the identity of this process.
RankIdentity identity_of_this_rank();

/// Returns "step 7, in exchange for 5.1 s (all_to_all 31 of communicator 2, 4096 bytes)".
std::string describe(const FlightState& state);

/// The state of a process that did not get on, as it is written for the user.
struct FlightRecord {
  std::string reason;
  int rank = 0;
  RankIdentity identity;
  FlightState state;
  std::vector<RankIdentity> ranks;  ///< all of them; empty: they have not met yet
};
/// Returns the record as indented JSON.
std::string to_json(const FlightRecord& record);

}  // namespace fp8train
