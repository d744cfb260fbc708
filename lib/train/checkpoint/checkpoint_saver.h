#pragma once
// Saves checkpoints while training continues. start() copies the state to host memory; a thread of
// each rank writes its files and reads them back. Ranks agree between the phases, at step
// boundaries where they meet anyway, on their training threads: all have written -> parts of
// weights are joined -> the first rank publishes the checkpoint -> it deletes older ones. No thread
// of a save calls a collective.
//
// One save is in flight at a time. A save fails on all ranks if it fails on one (the disk is full,
// a file cannot be read back): its partial folder is removed, and older checkpoints stay. A process
// that is killed leaves the checkpoints that had been published.
//
// All functions are collective. Without `async` the work is done inside of finish(), with the same
// bytes as a result.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/not_copied.h"
#include "comm/communicator.h"
#include "io/checkpoint/checkpoint_retention.h"
#include "train/checkpoint/state_copy.h"

namespace fp8train {

/// Writes this rank's files into a partial checkpoint and reads each of them back. Returns those of
/// the checkpoint: parts of weights are none. Throws DeviceError or CheckpointError.
std::vector<FileRecord> write_state(const std::filesystem::path& partial, const StateCopy& copy);

/// Writes this rank's files of the model in the same way; in a checkpoint of parts when all ranks
/// have written theirs.
std::vector<FileRecord> write_model_files(const std::filesystem::path& partial,
                                          const StateCopy& copy);

/// The result of a save. Only the seconds differ between ranks.
struct SaveResult {
  int64_t step = 0;
  bool saved = false;
  std::string failure;       ///< if it is not saved: the reason, and the rank that failed
  double stall_seconds = 0;  ///< in which this rank did not train
  double write_seconds = 0;  ///< seconds of the slowest rank, and those of publishing
  uint64_t bytes = 0;        ///< bytes that all ranks have written
};

class CheckpointSaver : NotCopied {
 public:
  /// `comm` outlives the object. `is_lost` is asked on the first rank whether the folder may be
  /// another run's by now, and answers so from then on: the save in flight then ends without a
  /// result, and nothing in the folder is published or removed. Empty: never.
  CheckpointSaver(std::filesystem::path root, bool async, CheckpointRetention retention,
                  Communicator& comm, std::function<bool()> is_lost = {});
  /// Waits for this rank's thread. A checkpoint that is published by then stays; a save that has
  /// not come that far leaves nothing, or what it has where the folder is lost.
  ~CheckpointSaver();

  /// Takes the memory of the copy, so that no save has to wait for it, or fails for lack of it.
  void reserve(const std::function<void(StateCopy&)>& copy) { copy(copy_); }

  /// Copies the state with `copy` and begins to write it. No save is in flight. Throws what `copy`
  /// throws on any rank (NumericError on all).
  void start(const std::function<void(StateCopy&)>& copy, bool deletes_older);

  bool in_flight() const { return phase_ != Phase::none; }
  int64_t step() const { return copy_.step; }  ///< the step of the last save that was started

  /// Called at a step boundary. Begins the next phase if all ranks have ended one. Returns the
  /// result of a save that has been published or has failed, once.
  std::optional<SaveResult> advance() { return progress(false); }
  /// The same, and waits until no save is in flight.
  std::optional<SaveResult> finish() { return progress(true); }

  /// A checkpoint was loaded, which verifies its hashes.
  void mark_verified(int64_t step) { retention_.mark_verified(step); }

  /// Bytes that the copy of the state occupies.
  size_t copy_bytes() const;

 private:
  enum class Phase : uint8_t { none, begin, write, join, check, publish, retain };
  enum class Failure : uint8_t { none, save, numeric };

  /// The result of one phase on one rank, as it is sent to the other ranks.
  struct Report {
    bool done = false;
    bool is_lost = false;
    Failure failure = Failure::none;
    double seconds = 0;
    uint64_t bytes = 0;
  };

  template <typename Work>
  Report attempt(const Work& work);
  static int first_failed(const std::vector<Report>& all);
  bool leads() const { return comm_->rank() == 0; }
  bool is_lost() const { return leads() && is_lost_ && is_lost_(); }
  void begin(Phase phase);
  void work_on(Phase phase, Report& report);
  Phase next_phase() const;
  std::optional<SaveResult> progress(bool wait);
  void end_phase(const std::vector<Report>& all);
  void end_save(const std::string& failure);
  void end_retention(const std::string& failure);
  void add_records();

  std::filesystem::path root_;
  bool async_;
  CheckpointRetention retention_;  // used by the thread while a phase runs
  Communicator* comm_;
  std::function<bool()> is_lost_;
  StateCopy copy_;                   // used by the thread while a phase runs
  std::vector<FileRecord> records_;  // used by the thread while a phase runs
  bool deletes_older_ = true;
  Phase phase_ = Phase::none;
  std::future<Report> job_;
  Report report_;        // the report of this rank in this phase
  std::string failure_;  // why this rank failed; used by the thread while a phase runs
  SaveResult current_;
  Stopwatch entered_;  // since the caller waits for this object
  std::optional<SaveResult> result_;
};

}  // namespace fp8train
