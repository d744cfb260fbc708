#include "train/run_start.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/error_prefix.h"
#include "io/checkpoint/checkpoint.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

constexpr int64_t kNothing = -1;  // there is no checkpoint
constexpr int64_t kDamaged = -2;  // none can be used

}  // namespace

MissingTokens missing_tokens(const ModelSettings& model) {
  return model.resize_vocabulary > 0 ? MissingTokens::append : MissingTokens::refuse;
}

namespace {

/// Throws CheckpointError where `step` is kDamaged.
void set_found(FoundStart& found, int64_t step, const std::filesystem::path& checkpoints) {
  if (step == kNothing) {
    return;
  }
  if (step == kDamaged) {
    std::string message = fmt::format(
        "none of the run's checkpoints can be used, and a new run would write over them; set "
        "another output_dir, or remove {}",
        checkpoints.string());
    for (const std::string& note : found.notes) {
      message += "\n  " + note;
    }
    throw CheckpointError(message);
  }
  found.step = step;
  found.checkpoint = checkpoint_of_step(checkpoints, step);
}

int64_t newest_step(const std::filesystem::path& checkpoints, FoundStart& found, Wanted wanted) {
  const auto newest =
      newest_valid(checkpoints, found.notes,
                   wanted.depth == Verify::hashes ? check_content : check_saved_state, wanted);
  return newest ? newest->step : found.notes.empty() ? kNothing : kDamaged;
}

}  // namespace

FoundStart find_start(const Session& session, const std::filesystem::path& checkpoints,
                      Communicator& comm, Verify depth) {
  const CheckpointSettings& checkpoint = session.settings.checkpoint;
  const ResumeFrom from = checkpoint.resume_from();
  FoundStart found;
  if (from == ResumeFrom::nothing) {
    if (!find_checkpoints(checkpoints).empty()) {
      throw ConfigError(fmt::format(
          "checkpoint.resume is never, but {} holds checkpoints of an earlier run; choose another "
          "output_dir or remove that folder",
          checkpoints.string()));
    }
    return found;
  }
  // Others may see an older folder.
  const int64_t step = found_by_first_rank(comm, [&]() -> int64_t {
    return from == ResumeFrom::folder
               ? with_prefix<CheckpointError>(
                     "checkpoint.resume: ",
                     [&] { return verify_checkpoint(checkpoint.resume, depth).step; })
               : newest_step(checkpoints, found, {.depth = depth});
  });
  if (from == ResumeFrom::folder) {
    found.step = step;
    found.checkpoint = checkpoint.resume;
  } else {
    set_found(found, step, checkpoints);
  }
  return found;
}

FoundStart find_older_start(const std::filesystem::path& checkpoints, const FoundStart& damaged,
                            const std::string& why, Communicator& comm) {
  FoundStart found;
  found.notes = damaged.notes;
  found.notes.push_back(skipped_checkpoint(*damaged.checkpoint, why));
  const int64_t step = found_by_first_rank(comm, [&] {
    return newest_step(checkpoints, found, {.depth = Verify::sizes, .before = damaged.step});
  });
  set_found(found, step, checkpoints);
  return found;
}

RunStart load_start(const Session& session, const FoundStart& found, Engine& engine, Device& device,
                    Communicator& comm) {
  RunStart start = {.state = {}, .line = {}, .warnings = found.notes, .changes = {}};
  const std::string& model = session.settings.model.from;
  if (found.checkpoint) {
    const ResumedRun resumed = load_checkpoint(*found.checkpoint, engine, session, comm);
    start.state = resumed.state;
    start.changes = resumed.changes;
    start.line =
        fmt::format("resumed from {} at step {}", resumed.folder.string(), resumed.state.step);
    start.warnings.insert(start.warnings.end(), resumed.notes.begin(), resumed.notes.end());
  } else if (!model.empty()) {
    load_weights(device, engine.model(), TensorSource(model),
                 missing_tokens(session.settings.model));
    start.line = "weights from " + model;
  } else {
    engine.model().initialize(session.settings.step.seed);
  }
  return start;
}

}  // namespace fp8train
