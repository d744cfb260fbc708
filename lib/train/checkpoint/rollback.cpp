#include "train/checkpoint/rollback.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "io/checkpoint/checkpoint.h"
#include "train/checkpoint/resume_checks.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNone = -1;
constexpr size_t kMostWarnings = 5;

void warn_of(const fs::path& checkpoint, const CheckpointError& error) {
  log_warning(
      fmt::format("passed over checkpoint {}: {}", checkpoint.filename().string(), error.what()));
}

using Steps = std::set<int64_t>;

/// Returns the newest checkpoint of a step before `end`, and not in `damaged`, whose state can be
/// read; only of those at checkpoint.interval where `scheduled`. Warns of the first five
/// of the others.
std::optional<CheckpointFolder> newest_before(const fs::path& root, int64_t end, bool scheduled,
                                              const Steps& damaged) {
  size_t warned = 0;
  for (const CheckpointFolder& folder : find_checkpoints(root)) {
    if (folder.step >= end || damaged.count(folder.step) > 0) {
      continue;
    }
    try {
      check_saved_state(folder.path);
      if (!scheduled || is_scheduled(folder.path)) {
        return folder;
      }
    } catch (const CheckpointError& error) {
      if (++warned <= kMostWarnings) warn_of(folder.path, error);
    }
  }
  return std::nullopt;
}

/// Returns the step to go back to, or kNone. For the first rank.
int64_t target_step(const fs::path& root, const DivergenceError& divergence,
                    const TrainingState& now, const Steps& damaged) {
  const int64_t end = divergence.first_step();
  std::optional<CheckpointFolder> target = newest_before(root, end, true, damaged);
  if (target && !now.rollbacks.empty() && target->step == now.rollbacks.back().to_step) {
    // It has led here before.
    if (const auto older = newest_before(root, target->step, true, damaged)) {
      target = older;
    }
  }
  if (!target) {
    target = newest_before(root, end, false, damaged);
  }
  return target ? target->step : kNone;
}

void delete_newer(const fs::path& root, int64_t step) {
  for (const CheckpointFolder& folder : find_checkpoints(root)) {
    if (folder.step > step) {
      remove_checkpoint(folder);
    }
  }
  for (const std::string& failure : tidy_checkpoints(root, step)) {  // files left above among them
    log_warning(failure);
  }
}

/// Returns the divergence with another sentence.
DivergenceError with_sentence(const DivergenceError& divergence, const std::string& sentence) {
  return {fmt::format("{}. {}", divergence.what(), sentence), divergence.kind(),
          divergence.first_step()};
}

/// Sets checkpoints aside, and warns of those where that fails.
void set_aside_from(const fs::path& root, int64_t first_step) {
  for (const CheckpointFolder& folder : find_checkpoints(root)) {
    try {
      if (folder.step >= first_step) {
        log_warning(fmt::format("{} is of a run that has diverged, and is now {}",
                                folder.path.filename().string(),
                                set_aside_checkpoint(folder).filename().string()));
      }
    } catch (const DeviceError& error) {
      log_warning(error.what());
    }
  }
}

/// Loads the checkpoint to go back to. One that turns out to be damaged on any rank is passed over.
ResumedRun load_target(const DivergenceError& divergence, const fs::path& root, Engine& engine,
                       const Session& session, const TrainingState& now, Communicator& comm) {
  Steps damaged;
  while (true) {
    const int64_t step =
        found_by_first_rank(comm, [&] { return target_step(root, divergence, now, damaged); });
    if (step == kNone) {
      const std::string why = fmt::format(
          "There is no usable checkpoint of a step before {} to go back to "
          "(training.on_divergence: rollback); lower checkpoint.interval",
          divergence.first_step());
      end_diverged(with_sentence(divergence, why), root, comm);
    }
    const fs::path folder = checkpoint_of_step(root, step);
    try {
      return load_checkpoint(folder, engine, session, comm);
    } catch (const OtherRunError&) {
      throw;  // an older checkpoint of that run would be refused as well
    } catch (const CheckpointError& error) {
      damaged.insert(step);
      warn_of(folder, error);
    }
  }
}

}  // namespace

ResumedRun roll_back(const DivergenceError& divergence, const fs::path& root, Engine& engine,
                     const Session& session, const TrainingState& now, Communicator& comm) {
  const int64_t most = session.settings.training.max_rollbacks;
  if (static_cast<int64_t>(now.rollbacks.size()) >= most) {
    const std::string why =
        fmt::format("It went back to older checkpoints {} times already (training.max_rollbacks)",
                    now.rollbacks.size());
    end_diverged(with_sentence(divergence, why), root, comm);
  }
  ResumedRun resumed = load_target(divergence, root, engine, session, now, comm);
  const int64_t step = resumed.state.step;
  agree_on_step(comm, step, root);
  if (comm.rank() == 0) {
    delete_newer(root, step);
  }
  wait_for_first_rank(comm);
  resumed.state.rollbacks = now.rollbacks;
  resumed.state.rollbacks.push_back({.from_step = now.step,
                                     .to_step = step,
                                     .first_sample = resumed.state.sample_position,
                                     .end_sample = now.sample_position,
                                     .kind = name_of(divergence.kind())});
  resumed.state.sample_position = now.sample_position;
  return resumed;
}

void end_diverged(const DivergenceError& divergence, const fs::path& root, Communicator& comm) {
  const int64_t good = found_by_first_rank(comm, [&] {
    set_aside_from(root, divergence.first_step());
    Steps damaged;
    const auto newest = newest_before(root, divergence.first_step(), false, damaged);
    if (newest) {
      tidy_checkpoints(root, newest->step);  // `latest` names it
    }
    return newest ? newest->step : kNone;
  });
  throw with_sentence(
      divergence,
      good == kNone
          ? std::string("Nothing had been saved yet that a run could continue from")
          : fmt::format("The checkpoint of step {} is intact, and the next start resumes from it",
                        good));
}

}  // namespace fp8train
