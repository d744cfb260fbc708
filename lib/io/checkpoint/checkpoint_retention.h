#pragma once
// Which checkpoints of a run stay on disk. A checkpoint is deleted only if those that replace it
// have been verified by hash in this process: just after they were written, when the run resumed
// from one, or here, once. Synchronous; one thread uses an object at a time.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint/checkpoint.h"

namespace fp8train {

/// The rules by which older checkpoints stay.
struct RetentionRules {
  int64_t keep_last = 2;   ///< the newest valid ones that were scheduled; at least 1
  int64_t keep_every = 0;  ///< also those whose step is a multiple of this; 0: none
  int64_t keep_best = 0;   ///< also the valid ones with the lowest validation losses
};

/// An evaluation that a checkpoint belongs to.
struct CheckpointLoss {
  double loss = 0;
  int64_t step = 0;  ///< at which it was evaluated
};

/// Returns the loss of a checkpoint folder, or nothing if it has none. May throw CheckpointError.
using LossOfCheckpoint = std::function<std::optional<CheckpointLoss>(const std::filesystem::path&)>;

/// Whether a run saves a checkpoint at this step undisturbed; a stop saves others. May throw
/// CheckpointError.
using IsScheduled = std::function<bool(const std::filesystem::path&)>;

/// Deletes the checkpoints of a run that the rules do not keep.
class CheckpointRetention {
 public:
  /// Without `is_scheduled` every checkpoint counts as scheduled; without `loss_of` none has a
  /// loss. Throws InternalError if keep_last is below 1.
  CheckpointRetention(std::filesystem::path root, RetentionRules rules,
                      LossOfCheckpoint loss_of = {}, IsScheduled is_scheduled = {});

  /// Notes that the checkpoint of this step has been verified by hash.
  void mark_verified(int64_t step) { verified_.insert(step); }

  /// Deletes the checkpoints that no rule keeps and returns their paths; none unless the newest
  /// checkpoint, which stays, is valid. Where there are fewer than keep_last scheduled ones, the
  /// newest others fill the number. Of several checkpoints with the same evaluation the first one
  /// counts for keep_best. One that cannot be removed makes a note, and the others are removed.
  /// Throws DeviceError when the folder cannot be listed.
  std::vector<std::filesystem::path> apply();

  /// Adds a sentence to the notes, unless it has been among them before or is empty.
  void note(const std::string& sentence);

  /// Returns a sentence for each checkpoint that turned out to be damaged or could not be removed
  /// since the last call.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  bool is_valid(const CheckpointFolder& checkpoint);
  bool is_scheduled(const CheckpointFolder& checkpoint) const;
  std::set<int64_t> last_steps(const std::vector<CheckpointFolder>& checkpoints);
  std::set<int64_t> best_steps(const std::vector<CheckpointFolder>& checkpoints);

  std::filesystem::path root_;
  RetentionRules rules_;
  LossOfCheckpoint loss_of_;
  IsScheduled is_scheduled_;
  std::set<int64_t> verified_;
  std::set<int64_t> damaged_;  // checkpoints that a note has named
  std::set<std::string> noted_;
  std::vector<std::string> notes_;
};

}  // namespace fp8train
