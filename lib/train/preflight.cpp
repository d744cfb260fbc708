#include "train/preflight.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "base/nearest.h"
#include "device/cuda/cuda_device.h"
#include "device/device_questions.h"
#include "ops/attention/attention.h"
#include "train/records/progress.h"
#include "train/records/run_statistics.h"
#include "train/run_products.h"

namespace fp8train {
namespace {

/// Steps [begin, end) of a run with one plan, or without scaled GEMMs.
struct Steps {
  int64_t begin, end;
  std::string plan;
};

std::vector<Steps> steps_of_stages(const Session& session) {
  std::vector<Steps> all;
  for (const RunStage& stage : session.stages) {
    int64_t begin = stage.begin;
    for (const auto& [from, to] : stage.plain_steps) {
      if (begin < from) {
        all.push_back({begin, from, stage.plan.name});
      }
      all.push_back({from, to, std::string(name_of(stage.plan.activation))});
      begin = to;
    }
    if (begin < stage.end) {
      all.push_back({begin, stage.end, stage.plan.name});
    }
  }
  return all;
}

/// What follows the plan of a run that continues after `steps_done`.
std::string describe_stages(const Session& session, int64_t steps_done) {
  std::string text;
  for (const Steps& steps : steps_of_stages(session)) {
    const bool is_named = steps.begin <= steps_done && steps.plan == session.engine.plan.name;
    if (steps.end > steps_done && !is_named) {
      text +=
          fmt::format("; from step {} on {}", std::max(steps.begin, steps_done) + 1, steps.plan);
    }
  }
  return text;
}

std::string describe_steps(const Session& session) {
  const double epochs = session.settings.training.max_epochs;
  return fmt::format("steps   {} of {} tokens ({}{} x {} x {}){}", session.max_steps,
                     session.tokens_per_step(),
                     session.data_ranks > 1 ? fmt::format("{} ranks x ", session.data_ranks) : "",
                     session.engine.step.gradient_accumulation_steps,
                     session.engine.step.micro_batch_size, session.engine.step.seq_length,
                     epochs > 0 ? fmt::format(": {} epoch{} of {} samples", epochs,
                                              epochs == 1 ? "" : "s", session.epoch_samples)
                                : "");
}

const GpuKind& gpu_kind(const std::string& name) {
  if (const GpuKind* kind = find_gpu_kind(name)) {
    return *kind;
  }
  std::vector<std::string> names;
  for (const GpuKind& known : gpu_kinds()) {
    names.emplace_back(known.name);
  }
  const std::string near = nearest_name(name, names);
  throw ConfigError(fmt::format("--gpu: '{}' is not one of {}{}", name, fmt::join(names, ", "),
                                near.empty() ? "" : fmt::format("; did you mean {}?", near)));
}

}  // namespace

DryRunStep largest_stage(const Session& session,
                         const std::function<DryRunStep(const EngineSettings&)>& of_stage) {
  DryRunStep largest = of_stage(session.engine_of(0));
  largest.plan_name = session.stages.front().plan.name;
  for (size_t i = 1; i < session.stages.size(); ++i) {
    DryRunStep step = of_stage(session.engine_of(i));
    step.plan_name = session.stages[i].plan.name;
    if (step.memory.total() > largest.memory.total()) {
      largest = std::move(step);
    }
  }
  return largest;
}

void log_notes(const Session& session, bool trains) {
  for (const std::string& line : session.settings.notes.lines) {
    log_info(line);
  }
  if (trains && !session.not_copied.empty()) {
    log_info(session.not_copied);
  }
  for (const std::string& note : session.notes) {
    log_warning(note);
  }
  if (trains) {
    log_warnings(session.training_notes);
  }
}

int job_ranks(const JobSettings& job) {
  return static_cast<int>(job.nodes * job.ranks_per_node);
}

int fill_job(int64_t world_size, int64_t ranks_per_node, Settings& settings) {
  constexpr int64_t kMost = 65536;
  JobSettings& job = settings.job;
  const char* name_of_ranks = "--world-size";
  if (world_size == 0 && job_ranks(job) == 1) {
    world_size = settings.notes.processes;
    name_of_ranks = "the configuration's processes";
  }
  const int64_t ranks = world_size > 0 ? world_size : job_ranks(job);
  for (const auto& [name, count] :
       {std::pair(world_size > 0 ? name_of_ranks : "job.nodes and job.ranks_per_node", ranks),
        std::pair("--ranks-per-node", ranks_per_node)}) {
    if (count > kMost) {
      throw ConfigError(fmt::format("{}: {} ranks are more than {}", name, count, kMost));
    }
  }
  constexpr int64_t kUsual = 8;
  const int64_t usual = world_size > 0 ? kUsual : job.ranks_per_node;
  job.ranks_per_node = std::min(ranks_per_node > 0 ? ranks_per_node : usual, ranks);
  job.nodes = ceil_div(ranks, job.ranks_per_node);
  return static_cast<int>(ranks);
}

std::string describe_layout(const Session& session, const Topology& ranks) {
  const Mesh mesh(MeshShape::along_data(ranks), 0, nullptr);
  const std::string name = strategy_name(strategy_site(session.engine, mesh));
  return ranks.size() == 1 ? name
                           : fmt::format("{}, buckets of {} MiB", name,
                                         session.engine.strategy.bucket_bytes >> 20);
}

void check_fits(const RankMemory& memory, const MemoryLedger& planned) {
  if (!memory.fits(planned)) {
    throw DeviceError(fmt::format(
        "a rank needs {} of memory and has {}: lower training.micro_batch_size, set "
        "model.recompute: block, take a plan with fewer bytes per parameter, or more ranks with "
        "parallelism.zero_stage",
        describe_bytes(static_cast<double>(planned.total())),
        describe_bytes(static_cast<double>(memory.bytes))));
  }
}

std::string RankMemory::device_name() const {
  return gpu != nullptr ? gpu->name : is_host ? "this CPU" : "this GPU";
}

bool names_its_machine(const Settings& settings) {
  const JobSettings& job = settings.job;
  const bool has_memory =
      settings.device == DeviceChoice::cpu ? job.memory_gib > 0 : job.names_gpu();
  return has_memory || job.nodes == 1;
}

RankMemory memory_here(const Device& device, int64_t sharing) {
  const size_t available = device.available_memory();
  const size_t held = device.traits().library_workspace;  // part of the plan, no longer available
  const size_t ranks = is_host(device) ? static_cast<size_t>(sharing) : 1;
  return {nullptr, device.traits(), available == 0 ? 0 : (available + held) / ranks,
          is_host(device)};
}

namespace {

/// `here()`, whose error for a GPU that this machine lacks says how to plan for one.
const Device& device_of_job(const Settings& settings, const std::function<const Device&()>& here) {
  try {
    return here();
  } catch (const DeviceError& error) {
    if (settings.device != DeviceChoice::cuda) {
      throw;
    }
    throw DeviceError(
        fmt::format("{}; to plan for a GPU that is not here, name it in job.gpu", error.what()));
  }
}

}  // namespace

RankMemory memory_of_job(const Settings& settings, const std::function<const Device&()>& here) {
  constexpr double kGib = 1 << 30;
  const JobSettings& job = settings.job;
  const bool on_cpu = settings.device == DeviceChoice::cpu;
  if (job.names_gpu() && !on_cpu) {
    const GpuKind& kind = gpu_kind(job.gpu);
    const auto bytes = static_cast<size_t>(kind.memory_gib * kGib);
    return {&kind, cuda_traits(kind.capability, bytes), bytes};
  }
  RankMemory memory = memory_here(device_of_job(settings, here), job.ranks_per_node);
  if (on_cpu && job.memory_gib > 0) {
    const double node = static_cast<double>(job.memory_gib) * kGib;
    memory.bytes = static_cast<size_t>(node / static_cast<double>(job.ranks_per_node));
  }
  return memory;
}

MemoryLedger memory_of_run(const DryRunStep& dry_run, bool is_host) {
  MemoryLedger memory = dry_run.memory;
  if (is_host) {
    memory.add(MemoryCategory::state_copy, dry_run.state_copy);
  }
  return memory;
}

std::string describe_state_copy(const DryRunStep& dry_run) {
  return fmt::format("  and in the host's memory, as a copy for checkpoints, {}",
                     describe_bytes(static_cast<double>(dry_run.state_copy)));
}

std::vector<std::string> describe_memory(const MemoryLedger& planned, size_t nccl_bytes) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (planned.current(category) > 0) {
      lines.push_back(fmt::format("  {:<24}{:>12}", name_of(category),
                                  describe_bytes(static_cast<double>(planned.current(category)))));
    }
    if (category == MemoryCategory::communication && nccl_bytes > 0) {
      lines.push_back(fmt::format("    of it NCCL's buffers  {:>12}",
                                  describe_bytes(static_cast<double>(nccl_bytes))));
    }
  }
  lines.push_back(
      fmt::format("  {:<24}{:>12}", "total", describe_bytes(static_cast<double>(planned.total()))));
  return lines;
}

std::string describe_largest(const Session& session, const DryRunStep& dry_run) {
  return dry_run.plan_name == session.engine.plan.name
             ? ""
             : fmt::format("  in the stage of plan {}, which needs the most", dry_run.plan_name);
}

/// Lines about sources that are blended, or that name several files.
std::vector<std::string> describe_sources(const Session& session) {
  const Corpus& corpus = session.data.train;
  double total = 0;
  std::vector<double> epochs;
  if (corpus.is_blend()) {
    epochs = training_samples(session).epochs(session.samples());
    for (const CorpusSource& source : corpus.sources()) total += source.weight;
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < corpus.sources().size(); ++i) {
    const CorpusSource& source = corpus.sources()[i];
    const std::string what =
        fmt::format("{}: {}{} tokens", source.path,
                    source.files > 1 ? fmt::format("{} files, ", source.files) : "",
                    describe_count(static_cast<double>(source.size)));
    if (corpus.is_blend()) {
      lines.push_back(fmt::format("        {:5.1f} % {}, read {:.2f} times",
                                  100 * source.weight / total, what, epochs[i]));
    } else if (source.files > 1) {
      lines.push_back("        " + what);
    }
  }
  return lines;
}

std::string plan_line(const Session& session, const RankMemory& rank, int64_t steps_done) {
  const RunProducts products = products_of(session.engine, rank.traits);
  return fmt::format("plan    {}: {}{}{}", session.engine.plan.name,
                     describe_products(products, rank.device_name()),
                     products.has_scaled() ? " (`fp8train explain` lists them)" : "",
                     describe_stages(session, steps_done));
}

std::vector<std::string> device_lines(const Device& device, const std::string& reason,
                                      int64_t threads) {
  std::vector<std::string> lines = {fmt::format("device  {} ({}), {} thread{}",
                                                device.description(), reason, threads,
                                                threads == 1 ? "" : "s")};
  if (const std::string kernels = ops::attention_kernels(device.stream()); !kernels.empty()) {
    lines.push_back("        attention: " + kernels);
  }
  return lines;
}

std::vector<std::string> run_overview(const Session& session, const RankMemory& rank,
                                      const std::vector<std::string>& device, int64_t steps_done) {
  const ModelConfig& model = session.engine.model;
  std::vector<std::string> lines = {
      fmt::format("model   {} parameters: {} layers, {} wide, {} heads ({} kv), vocabulary {}",
                  describe_count(static_cast<double>(parameter_count(model))),
                  model.num_hidden_layers, model.hidden_size, model.num_attention_heads,
                  model.num_key_value_heads, model.vocab_size),
      plan_line(session, rank, steps_done),
      fmt::format("data    {} training tokens, {} validation tokens, tokenizer {}",
                  describe_count(static_cast<double>(session.data.train.size())),
                  describe_count(static_cast<double>(session.data.val.size())),
                  name_of(session.tokenizer->type()))};
  for (std::string& line : describe_sources(session)) {
    lines.push_back(std::move(line));
  }
  lines.push_back(describe_steps(session));
  lines.insert(lines.end(), device.begin(), device.end());
  return lines;
}

std::vector<std::string> memory_overview(const Session& session, bool is_host,
                                         const DryRunStep& dry_run, bool by_category) {
  if (!by_category) {
    const MemoryLedger planned = memory_of_run(dry_run, is_host);
    return {fmt::format("memory  {}{}", describe_bytes(static_cast<double>(planned.total())),
                        describe_largest(session, dry_run))};
  }
  std::vector<std::string> lines = {"memory" + describe_largest(session, dry_run)};
  for (std::string& line : describe_memory(memory_of_run(dry_run, is_host), dry_run.nccl_bytes)) {
    lines.push_back(std::move(line));
  }
  if (!is_host && dry_run.state_copy > 0) {
    lines.push_back(describe_state_copy(dry_run));
  }
  return lines;
}

}  // namespace fp8train
