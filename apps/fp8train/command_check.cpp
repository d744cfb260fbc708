// fp8train check: everything that can be known before a run starts. Reads all tokens of the data,
// plans the memory on the meta device, allocates nothing large.

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "base/key_error.h"
#include "base/log.h"
#include "base/quantities.h"
#include "base/screen.h"
#include "comm/backends/backends.h"
#include "commands.h"
#include "config/load.h"
#include "engine/dry_run.h"
#include "io/checkpoint/run_directory.h"
#include "io/metrics.h"
#include "output_path.h"
#include "overview.h"
#include "session_words.h"
#include "text_stream.h"
#include "train/checkpoint/base_weights.h"
#include "train/checkpoint/data_record.h"
#include "train/checkpoint/training_state.h"
#include "train/checkpoint/weights.h"
#include "train/one_rank.h"
#include "train/preflight.h"
#include "train/rank_device.h"
#include "train/records/run_statistics.h"
#include "train/run_start.h"

namespace fp8train {
namespace {

constexpr int64_t kSampledTokens = 48;
constexpr int kExitDifferent = 1;  // as for a bug, which it is

std::string sample_text(const Session& session) {
  const int64_t count = std::min(kSampledTokens, session.data.train.size());
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  session.data.train.read(0, count, tokens.data());
  return session.tokenizer->decode(tokens);
}

/// Reads every id of a corpus once. Throws DataError for one outside the vocabulary.
void scan(const Corpus& corpus, const char* name, bool quiet) {
  constexpr int64_t kPart = 1 << 20;
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(kPart, corpus.size())));
  ProgressLine line;
  for (int64_t done = 0; done < corpus.size(); done += kPart) {
    corpus.read(done, std::min(kPart, corpus.size() - done), tokens.data());
    if (!quiet) {
      const auto size = static_cast<double>(corpus.size());
      line.show([&] {
        return fmt::format("scanning {} data: {:.0f} % of {} tokens", name,
                           100.0 * static_cast<double>(done) / size, describe_count(size));
      });
    }
  }
  line.finish();
  if (!quiet && corpus.size() > 0) {
    print_fitted("scan    {} {} tokens in {}: all ids are below the vocabulary's size\n",
                 describe_count(corpus.size()), name, describe_duration(line.seconds()));
  }
}

/// Reads the weights that the run would start from: names, shapes, finite values.
void check_weights(const Session& session) {
  if (session.settings.model.from.empty()) {
    return;
  }
  const std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
  Decoder model(*meta, session.engine.model, session.engine.plan,
                {.settings = session.engine.step.decoder});
  load_weights(*meta, model, TensorSource(session.settings.model.from),
               missing_tokens(session.settings.model));
  if (const std::string& adapters = session.settings.model.lora_from; !adapters.empty()) {
    load_adapters(*meta, model, adapters);
  }
}

/// Compares the run with the checkpoint that it would continue from, and returns it. Data files are
/// compared by samples of their tokens or, with `whole_files`, by the hashes that the checkpoint
/// has of them. Throws as the start of the run would.
FoundStart check_checkpoint(Session& session, bool whole_files, bool quiet) {
  const RunDirectory directory{session.settings.output_dir};
  const std::unique_ptr<Communicator> self = make_self_communicator();
  FoundStart found = find_start(session, directory.checkpoints(), *self, Verify::hashes);
  log_warnings(found.notes);
  if (!found.checkpoint) {
    return found;
  }
  session.enter_stage(session.stage_after(found.step));
  if (whole_files) {
    const bool is_own = found.checkpoint->parent_path() == directory.checkpoints();
    begin_data_record(session, is_own ? directory.data_hashes() : std::filesystem::path());
  }
  const std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
  Decoder model(*meta, session.engine.model, session.engine.plan,
                {.settings = session.engine.step.decoder});
  log_warnings(check_resumes(*found.checkpoint, session, model));
  ProgressLine line;
  compare_all_data(session, [&](uint64_t bytes_left) {
    if (!quiet) {
      line.show([&] {
        return fmt::format("comparing data with the checkpoint's: {} left",
                           describe_bytes(bytes_left));
      });
    }
  });
  return found;
}

/// Whether the run has done all of its steps, as far as the names of its checkpoints show.
bool seems_over(const Session& session) {
  const RunDirectory directory{session.settings.output_dir};
  std::error_code unseen;
  if (!std::filesystem::exists(directory.checkpoints(), unseen)) {
    return false;
  }
  const std::vector<CheckpointFolder> saved = find_checkpoints(directory.checkpoints());
  return session.settings.checkpoint.resume_from() == ResumeFrom::newest && !saved.empty() &&
         is_over(session, directory, saved.front().step);
}

struct CheckOptions {
  RankOptions ranks;
  bool no_scan = false;
  bool against_one_rank = false;
};

/// The hardware that the run is for, and what the overview says of it.
struct CheckedHardware {
  std::unique_ptr<Device> device;  ///< null: it is not in this machine
  RankMemory rank;
  std::vector<std::string> lines;
};

CheckedHardware hardware_of(const Settings& settings) {
  CheckedHardware hardware;
  std::string reason;
  hardware.rank = memory_of_job(settings, [&]() -> const Device& {
    hardware.device = choose_device(settings.device, false, reason);
    return *hardware.device;
  });
  if (hardware.device != nullptr) {
    hardware.lines = device_lines(*hardware.device, reason,
                                  configure_threads(settings.threads, ranks_of_node(settings.job)));
  } else {
    hardware.lines = {fmt::format("device  {} (job.gpu): products and memory are planned for it",
                                  hardware.rank.gpu->name)};
  }
  return hardware;
}

/// Everything that is known of the run, a line each.
std::vector<std::string> describe_run(const Session& session, const CheckedHardware& hardware,
                                      const DryRunStep& dry_run, const Topology& ranks) {
  std::vector<std::string> lines =
      run_overview(session, hardware.rank, hardware.lines, dry_run, 0, true);
  if (hardware.device == nullptr) {
    lines.emplace_back("  cuDNN's workspace for attention is not counted");
  }
  if (ranks.size() > 1) {
    lines.push_back(fmt::format("ranks   {} on {} node{}, {}: memory is that of a rank",
                                ranks.size(), ranks.nodes(), ranks.nodes() == 1 ? "" : "s",
                                describe_layout(session, ranks)));
  }
  lines.push_back(fmt::format("work    {:.3g} GFLOP per step in GEMMs, {:.3g} in attention",
                              dry_run.work.gemm_flops / 1e9, dry_run.work.attention_flops / 1e9));
  lines.push_back(fmt::format("sample  {}", json_text(nlohmann::json(sample_text(session)))));
  return lines;
}

/// Says whether the run fits, and returns the exit code: that of the run, where it is known which
/// machine it is for.
int verdict(const CheckOptions& options, const Session& session, const FoundStart& start,
            const RankMemory& rank, const MemoryLedger& planned) {
  const Settings& settings = session.settings;
  try {
    check_fits(rank, planned);
  } catch (const DeviceError& error) {
    print_fitted("\n{}\n",
                 colored(stdout, Color::red, std::string("DOES NOT FIT: ") + error.what()));
    if (!names_its_machine(settings)) {
      print_fitted(
          "compared with this machine, as the job names no other one: set job.gpu, or on "
          "CPUs device: cpu and job.memory_gib; all else is ok\n");
      return 0;
    }
    print_fitted("on {} the run would stop at once, with exit code {}; all else is ok\n",
                 device_name(rank), kExitDevice);
    return kExitDevice;
  }
  const RunDirectory directory{settings.output_dir};
  if (options.ranks.common.quiet) {
    return 0;
  }
  if (start.checkpoint && is_over(session, directory, start.step)) {
    print_fitted("{}\n", without_controls(describe_end(session, start.step)));
  } else {
    print_fitted(
        "{}\n",
        without_controls(fmt::format(
            "ok: the configuration is valid, {} of the data can be read, output_dir can be "
            "written, and the run fits into {}\nstart it with `{}`",
            options.no_scan ? "a sample" : "every token",
            rank.gpu != nullptr ? fmt::format("the memory of {}", rank.gpu->name) : "memory",
            run_command(options.ranks.common, session.ranks))));
  }
  return 0;
}

std::string describe_axes(const SmallRun& run) {
  const MeshShape shape = mesh_shape(run.engine.strategy.layout, run.ranks);
  std::string text;
  for (const auto& [axis, size] : {std::pair("tensor", shape.tensor),
                                   {"pipeline", shape.pipeline},
                                   {"context", shape.context},
                                   {"data", shape.data}}) {
    text += size == 1 ? "" : fmt::format("{}{} {}", text.empty() ? "" : " x ", axis, size);
  }
  text += shape.expert == 1 ? "" : fmt::format(" (expert {})", shape.expert);
  return text.empty() ? "one rank" : text;
}

/// Returns its size, and which sum over ranks it may come from.
std::string describe(const FirstDifference& difference, const SmallRun& run) {
  if (std::isnan(difference.relative)) {
    return "ranks that have the same part differ, or it is not finite";
  }
  constexpr double kNear = 0.02;
  const MeshShape shape = mesh_shape(run.engine.strategy.layout, run.ranks);
  const double ratio = difference.ratio;
  std::string hint = std::abs(ratio - 1) < kNear ? ": the size is right" : "";
  for (const int ranks : {shape.tensor, shape.data, shape.pipeline, shape.context, shape.expert}) {
    if (ranks > 1 && std::abs(ratio / ranks - 1) < kNear) {
      hint = fmt::format(", as if {} ranks each added the whole", ranks);
    } else if (ranks > 1 && std::abs(ratio * ranks - 1) < kNear) {
      hint = fmt::format(", as if the sum of {} ranks had one part, or were divided again", ranks);
    }
  }
  return fmt::format("the difference is {:.3g} of its norm, and the ratio of norms {:.6g}{}",
                     difference.relative, ratio, hint);
}

/// Compares two layouts and says what was found. Returns whether it was expected.
bool compare(const SmallRun& one, const TrainedModel& expected, const SmallRun& other,
             const TrainedModel& actual) {
  const Nearness allowed = expected_nearness(one, other);
  const auto found = first_difference(expected, actual, allowed);
  const std::string pair = fmt::format("{} against {}", describe_axes(other), describe_axes(one));
  const std::string promise =
      allowed.gradient == 0
          ? "equal bits"
          : fmt::format("equal but for {:g} of a gradient's norm", allowed.gradient);
  if (!found) {
    print_fitted("{}: {}, as expected\n", pair, promise);
    return true;
  }
  print_fitted("{}\n", colored(stdout, Color::red,
                               fmt::format("{}: DIFFERENT; expected: {}", pair, promise)));
  print_fitted("  first: {}, its {} {}: {}\n", found->parameter, found->tensor,
               found->step == 0 ? "before the first step" : fmt::format("in step {}", found->step),
               describe(*found, other));
  if (found->count > 1) {
    print_fitted("  {} parameters differ there; the last is {}, where backward is first\n",
                 found->count, found->last);
  }
  return false;
}

/// Returns whether the run's layout computes what one rank does, as far as that is expected.
bool compare_with_one_rank(const EngineSettings& engine, const Topology& ranks) {
  const SmallRun run = small_run(engine, ranks);
  const StepSettings& step = run.engine.step;
  const ModelConfig& model = run.engine.model;
  print_fitted("plan    {}\nlayout  {} as {} threads of this process; the run has {}\n",
               run.engine.plan.name, describe_axes(run), run.ranks.size(),
               describe_axes({.engine = engine, .ranks = ranks}));
  print_fitted(
      "model   {} of {} blocks, {} wide{}, {} tokens; {} micro-batch{} of {} x {} random tokens\n",
      model.num_hidden_layers, engine.model.num_hidden_layers, model.hidden_size,
      run.divided == 1 ? "" : fmt::format(" (about 1/{} of the run)", run.divided),
      model.vocab_size, step.gradient_accumulation_steps,
      step.gradient_accumulation_steps == 1 ? "" : "es", step.micro_batch_size, step.seq_length);
  const SmallRun one = with_one_rank(run);
  const SmallRun whole = with_whole_models(run);
  const TrainedModel of_one = train_in_threads(one);
  const TrainedModel of_run = train_in_threads(run);
  if (whole.ranks.size() == 1 || whole.ranks.size() == run.ranks.size()) {
    return compare(one, of_one, run, of_run);
  }
  const TrainedModel of_whole = train_in_threads(whole);
  const bool data = compare(one, of_one, whole, of_whole);
  return compare(whole, of_whole, run, of_run) && data;
}

int compare_settings(const Settings& settings, int world_size, const Topology& ranks) {
  if (world_size == 1) {
    throw ConfigError(
        "--against-one-rank: the run has one rank; give the number of ranks with --world-size, and "
        "their layout in the section parallelism");
  }
  const Session session = open_session(settings, true, world_size);
  log_notes(session, true);
  if (settings.device != DeviceChoice::cpu) {
    print_fitted(
        "device  the cpu: what the ranks divide, add and send is the run's; a GPU's own kernels "
        "and NCCL are not compared, whose bits depend on the shapes of layers\n");
  }
  bool as_expected = true;
  for (size_t stage = 0; stage < session.stages.size(); ++stage) {
    as_expected = compare_with_one_rank(session.engine_of(stage), ranks) && as_expected;
  }
  const ParallelLayout& layout = settings.parallelism.layout;
  const bool has_experts = session.engine.model.moe.experts > 0;
  if (layout.tensor > 1 && layout.tensor_parts == 0 && !has_experts) {
    print_fitted("with parallelism.tensor_parts={} bits are compared\n", layout.tensor);
  }
  return as_expected ? 0 : kExitDifferent;
}

int check_settings(const CheckOptions& options, const Settings& settings, int world_size) {
  const auto ranks = Topology::blocks(world_size, ranks_of_node(settings.job));
  mesh_shape(settings.parallelism.layout, ranks);  // a session of one rank does not read it
  if (options.against_one_rank) {
    return compare_settings(settings, world_size, ranks);
  }
  keyed<ConfigError>("output_dir", [&] { check_not_in_use(settings.output_dir); });
  Session session = open_session(settings, true, world_size);
  log_notes(session, !seems_over(session));
  check_weights(session);
  const CheckedHardware hardware = hardware_of(settings);
  const DryRunStep dry_run = largest_rank(session, [&](const EngineSettings& engine, int rank) {
    return hardware.device == nullptr ? dry_run_step(engine, hardware.rank.traits, ranks, rank)
                                      : dry_run_step(engine, *hardware.device, ranks, rank);
  });
  const bool quiet = options.ranks.common.quiet;
  const auto say = [quiet](const std::string& line) {
    if (!quiet) {
      print_fitted("{}\n", without_controls(line));
    }
  };
  for (const std::string& line : describe_run(session, hardware, dry_run, ranks)) {
    say(line);
  }
  const MemoryLedger planned = memory_of_run(dry_run, hardware.rank.is_host);
  if (!hardware.rank.fits(planned)) {  // also where what follows is an error
    const auto [needs, has] = describe_both(planned.total(), hardware.rank.bytes);
    say(fmt::format("memory  DOES NOT FIT: needs {} of {}", needs, has));
  }
  if (const std::string problem = why_unwritable(settings.output_dir); !problem.empty()) {
    throw Keyed<DeviceError>("output_dir", ": " + problem);
  }
  const FoundStart start = check_checkpoint(session, !options.no_scan, quiet);
  if (start.checkpoint) {
    say(fmt::format("resume  from {}: step {} of {}", start.checkpoint->string(), start.step,
                    session.max_steps));
  }
  if (!options.no_scan) {
    scan(session.data.train, "training", quiet);
    scan(session.data.val, "validation", quiet);
  }
  return verdict(options, session, start, hardware.rank, planned);
}

}  // namespace

void add_check(Arguments command, Action& action) {
  auto options = std::make_shared<CheckOptions>();
  add_ranks(command, options->ranks);
  command.flag("--no-scan", options->no_scan, "Do not read all tokens, only samples");
  command.flag("--against-one-rank", options->against_one_rank,
               "Only train two steps of a small part of the model in the run's layout and on one "
               "rank, and name the first parameter that differs (exit code 1)");
  command.run_in_first(action, [options] {
    Settings settings = load(options->ranks.common);
    const int world_size =
        fill_job(options->ranks.world_size, options->ranks.ranks_per_node, settings);
    return with_locations(settings, [&] { return check_settings(*options, settings, world_size); });
  });
}

}  // namespace fp8train
