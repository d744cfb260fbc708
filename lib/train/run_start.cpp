#include "train/run_start.h"

#include <fmt/format.h>

#include "base/error.h"
#include "io/checkpoint.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

std::optional<ResumedRun> resume(const Session& session, Engine& engine,
                                 const std::filesystem::path& checkpoints,
                                 std::vector<std::string>& warnings, Communicator& comm) {
  const CheckpointSettings& checkpoint = session.settings.checkpoint;
  switch (checkpoint.resume_from()) {
    case ResumeFrom::newest:
      return resume_newest(checkpoints, engine, session, warnings, comm);
    case ResumeFrom::folder:
      return resume_from(checkpoint.resume, engine, session, comm);
    case ResumeFrom::nothing:
      break;
  }
  if (!find_checkpoints(checkpoints).empty()) {
    throw ConfigError(fmt::format(
        "checkpoint.resume is never, but {} holds checkpoints of an earlier run; choose another "
        "output_dir or remove that folder",
        checkpoints.string()));
  }
  return std::nullopt;
}

}  // namespace

MissingTokens missing_tokens(const ModelSettings& model) {
  return model.resize_vocabulary > 0 ? MissingTokens::append : MissingTokens::refuse;
}

int64_t step_to_begin_at(const Session& session, const std::filesystem::path& checkpoints,
                         Communicator& comm) {
  const CheckpointSettings& checkpoint = session.settings.checkpoint;
  if (checkpoint.resume_from() == ResumeFrom::newest) {
    return newest_step_of(checkpoints, comm);
  }
  if (checkpoint.resume_from() == ResumeFrom::nothing) {
    return 0;
  }
  const int64_t step =
      comm.rank() == 0 ? verify_checkpoint(checkpoint.resume, Verify::sizes).step : 0;
  wait_for_first_rank(comm);
  return comm.all_gather_values(step).front();
}

RunStart load_start(const Session& session, Engine& engine, Device& device,
                    const RunDirectory& directory, Communicator& comm) {
  RunStart start;
  const std::string& model = session.settings.model.from;
  if (const std::optional<ResumedRun> resumed =
          resume(session, engine, directory.checkpoints(), start.warnings, comm)) {
    start.state = resumed->state;
    start.checkpoint = resumed->folder;
    start.line =
        fmt::format("resumed from {} at step {}", resumed->folder.string(), resumed->state.step);
    start.warnings.insert(start.warnings.end(), resumed->notes.begin(), resumed->notes.end());
  } else if (!model.empty()) {
    load_weights(device, engine.model(), TensorSource(model),
                 missing_tokens(session.settings.model));
    start.line = "weights from " + model;
  } else {
    engine.model().initialize(session.settings.training.seed);
  }
  agree_on_step(comm, start.state.step, directory.checkpoints());
  return start;
}

}  // namespace fp8train
