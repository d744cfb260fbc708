#pragma once
// Messages between the ranks of a run in addition to gradients. All functions but Heartbeat::beat()
// are collective; one rank alone exchanges nothing.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/clock.h"
#include "comm/mesh.h"
#include "device/device.h"
#include "nn/parameter.h"

namespace fp8train {

/// The facts that the ranks of a run have alike.
struct RunFacts {
  std::string settings;       ///< RunRequest::resolved_yaml
  std::string version;        ///< of the program
  std::string data = {};      ///< the fingerprint of the training data
  std::string schedule = {};  ///< the text of parallelism.schedule_file
};

/// Throws ConfigError, on all ranks, when ranks differ in a fact. The message names the settings
/// that differ, and their values.
void agree_on_run(Communicator& comm, const RunFacts& mine);

/// Checks that all ranks, each of which has read its state itself, continue from the same step.
/// Throws CheckpointError, on all ranks, if they do not. `where` is the folder of checkpoints, for
/// the message.
void agree_on_step(Communicator& comm, int64_t step, const std::filesystem::path& where);

/// Checks that all ranks see run.lock, which the first rank has made in `folder`. Waits up to ten
/// seconds for it, which file systems of a network may take. Throws ConfigError, on all ranks, if
/// one does not see it.
void check_shared_folder(Communicator& comm, const std::filesystem::path& folder);

/// Copies weights that several ranks have from the first of these to the others, bit for bit:
/// processors may draw initial values that differ in their last bits. If ranks have parts of the
/// weights, copies only the scales that parts share.
void share_weights(const Mesh& mesh, Device& device, const ParameterStore& parameters);

/// Returns the text of rank `root` on all ranks.
std::string text_of_rank(Communicator& comm, const std::string& mine, int root);

/// Waits for work that only the first rank does. It may take as long as the watchdog leaves to the
/// section of the calling thread (base/flight_recorder.h), if that is longer than comm.timeout.
/// Throws TimeoutError.
void wait_for_first_rank(Communicator& comm);

/// Calls `find` on the first rank and returns its result on all ranks, which wait for it as
/// wait_for_first_rank() does.
int64_t found_by_first_rank(Communicator& comm, const std::function<int64_t()>& find);

/// Returns the first rank's answer on all ranks.
bool first_rank_says(Communicator& comm, bool mine);

/// Lets ranks wait for work that the first rank does alone, however long it takes: the first rank
/// tells the others now and then that it gets on, and they wait no longer for that than the
/// watchdog leaves to the section.
class Heartbeat {
 public:
  /// `comm` outlives the object.
  explicit Heartbeat(Communicator& comm) : comm_(&comm) {}

  /// Tells the other ranks that the first rank gets on, about once a second however often it is
  /// called. Called by the first rank only.
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

/// Returns the number of ranks, this one among them, that may use a core that this one may use.
int ranks_on_these_cores(Communicator& comm);

}  // namespace fp8train
