#include "train/run_start.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/key_error.h"
#include "base/log.h"
#include "config/load.h"
#include "engine/dry_run.h"
#include "io/checkpoint/checkpoint.h"
#include "train/checkpoint/base_weights.h"
#include "train/checkpoint/data_record.h"
#include "train/checkpoint/resume_checks.h"
#include "train/preflight.h"
#include "train/rank_device.h"
#include "train/ranks.h"
#include "train/records/environment.h"

namespace fp8train {
namespace {

constexpr int64_t kNothing = -1;  // there is no checkpoint
constexpr int64_t kDamaged = -2;  // none can be used

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
      throw KeyError("checkpoint.resume",
                     fmt::format(" is never, but {} holds checkpoints of an earlier run; choose "
                                 "another output_dir or remove that folder",
                                 checkpoints.string()));
    }
    return found;
  }
  // Others may see an older folder.
  const int64_t step = found_by_first_rank(comm, [&]() -> int64_t {
    return from == ResumeFrom::folder
               ? keyed<CheckpointError>(
                     "checkpoint.resume",
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

bool is_over(const Session& session, const RunDirectory& directory, int64_t step) {
  return step > session.max_steps ||
         (step == session.max_steps && std::filesystem::exists(directory.summary()));
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

namespace {

DryRunStep dry_run_of(const EngineSettings& engine, const Communicator& comm,
                      const RankDevice& rank_device) {
  return dry_run_step(engine, *rank_device.device, comm.topology(), comm.rank());
}

/// Reports the memory of this rank, which fits, and returns the plan of the first stage. `dry_run`:
/// of the largest one.
StepPlan plan_memory(const RunParts& parts, const DryRunStep& dry_run) {
  const RankMemory memory = memory_here(*parts.rank_device->device, parts.comm->local_size());
  parts.listener->planned(parts, memory, dry_run);
  check_fits(memory, memory_of_run(dry_run, memory.is_host));
  return parts.session.stages.size() == 1
             ? dry_run.plan
             : dry_run_of(parts.session.engine, *parts.comm, *parts.rank_device).plan;
}

RunListener silent;

}  // namespace

RunParts start_run(const RunRequest& request, Communicator& comm, const RankDevice& rank_device) {
  const MeshShape shape = with_locations(request.settings, [&] {
    return mesh_shape(request.settings.parallelism.layout, comm.topology());
  });
  const Mesh mesh(shape, comm.rank(), nullptr);
  const std::filesystem::path folder = request.settings.output_dir;
  if (mesh.leads()) {
    keyed<ConfigError>("output_dir", [&] { check_not_in_use(folder); });
  }
  const Stopwatch since_start;
  Session opened = open_session(request.settings, true, comm.size());
  section_advances();
  agree_on_run(comm, {request.resolved_yaml, request.version, opened.data.train.fingerprint(),
                      text_of(opened.engine.strategy.layout.given_schedule)});
  const int64_t threads = configure_threads(opened.settings.threads, ranks_on_these_cores(comm));
  const DryRunStep dry_run = largest_stage(opened, [&](const EngineSettings& engine) {
    return dry_run_of(engine, comm, rank_device);  // a refused layout leaves no folder
  });
  RunParts parts = {
      .since_start = since_start,
      .comm = &comm,
      .rank_device = &rank_device,
      .session = std::move(opened),
      .records = RunRecords(folder, mesh.leads()),
      .listener = mesh.leads() && request.listener != nullptr ? request.listener : &silent,
      .earlier_config = {},
      .threads = threads,
      .found = {},
      .plan = {}};
  Session& session = parts.session;
  const RunDirectory& directory = parts.records.directory();
  parts.listener->opened(directory);
  check_shared_folder(comm, directory.root);
  parts.earlier_config = earlier_config(directory);
  if (mesh.leads()) {
    open_log_file(directory.log().string());
  } else {
    set_log_level(LogLevel::error);
  }
  if (!parts.records.lock_warning().empty()) {
    log_warning(parts.records.lock_warning());
  }
  parts.listener->noted(session);
  parts.found = find_start(session, directory.checkpoints(), comm, Verify::sizes);
  session.enter_stage(session.stage_after(parts.found.step));
  parts.plan = plan_memory(parts, dry_run);
  if (mesh.leads()) {
    begin_data_record(session, directory.data_hashes());
    const FileHashes& hashes = session.data_record->hashes();
    parts.listener->hashed(hashes.files().size(), hashes.bytes_left());
  }
  return parts;
}

ResumedRun load_start(const Session& session, const FoundStart& found, Engine& engine,
                      Device& device, Communicator& comm) {
  ResumedRun start;
  if (found.checkpoint) {
    start = load_checkpoint(*found.checkpoint, engine, session, comm);
  } else {
    const std::string& from = session.settings.model.from;
    start.folder = from;
    if (!from.empty()) {
      engine.model().initialize_adapters(session.settings.step.seed);
    }
    load_base(engine, session,
              from.empty()
                  ? Magnitudes()
                  : agreed_magnitudes(engine, from, missing_tokens(session.settings.model)));
    if (const std::string& adapters = session.settings.model.lora_from; !adapters.empty()) {
      load_adapters(device, engine.model(), adapters);
    }
  }
  start.notes.insert(start.notes.begin(), found.notes.begin(), found.notes.end());
  return start;
}

}  // namespace fp8train
