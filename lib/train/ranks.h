#pragma once
// Messages between the ranks of a run in addition to gradients. All functions are collective, and
// do nothing if there is one rank.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/clock.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "nn/parameter.h"

namespace fp8train {

/// Throws ConfigError when ranks differ in `description`: settings, data, version of the program.
void agree_on_run(Communicator& comm, const std::string& description);

/// Checks that all ranks, which look for the newest checkpoint themselves, have found the same
/// step. Throws CheckpointError if they have not. `where` says where they looked, for the message.
void agree_on_step(Communicator& comm, int64_t step, const std::filesystem::path& where);

/// The first rank has made `folder`. Throws ConfigError where another does not see it within ten
/// seconds, which file systems of a network may take.
void check_shared_folder(Communicator& comm, const std::filesystem::path& folder);

/// All get the first rank's weights, bit for bit: processors may draw initial values that differ in
/// their last bits. Where ranks have parts of them, the scales that parts share.
void share_weights(Communicator& comm, Device& device, const ParameterStore& parameters);

/// After what only the first rank does, which may take longer than a message between ranks: as long
/// as the watchdog leaves to the section that this is in (base/flight_recorder.h).
void wait_for_first_rank(Communicator& comm);

/// What `find` returns on the first rank, for all; they wait for it as wait_for_first_rank() does.
int64_t found_by_first_rank(Communicator& comm, const std::function<int64_t()>& find);

/// Returns the first rank's answer on all ranks.
bool first_rank_says(Communicator& comm, bool mine);

/// Of work that the first rank does alone, however long it takes: it tells the others now and then
/// that it gets on, and they wait no longer for that than the watchdog leaves to the section.
class Heartbeat {
 public:
  /// `comm` outlives the object.
  explicit Heartbeat(Communicator& comm) : comm_(&comm) {}

  /// By the first rank, at least as often as the section must get on.
  void beat();
  /// Ends the heartbeat: the first rank has done its work, and the others wait for that.
  /// Collective.
  void end();

 private:
  /// Returns false on all ranks when the first rank has done its work. `mine` is the first rank's
  /// answer; other ranks ignore it.
  bool first_rank_works(bool mine);

  Communicator* comm_;
  Stopwatch since_beat_;
};

/// How many ranks may use a core that this one may use, itself among them.
int ranks_on_these_cores(Communicator& comm);

}  // namespace fp8train
