#include "wizard_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/machine.h"
#include "base/quantities.h"
#include "base/text.h"
#include "comm/topology.h"
#include "config/fields/field_table.h"
#include "device/cuda/cuda_device.h"
#include "engine/dry_run.h"
#include "engine/step_time.h"
#include "overview.h"
#include "precision/plan_entries.h"
#include "run_products.h"
#include "train/preflight.h"
#include "train/rank_device.h"
#include "train/session.h"

namespace fp8train {
namespace {

bool has_model(const ModelSettings& model) {
  const ModelConfig& config = model.config;
  return !model.from.empty() || (config.hidden_size > 0 && config.num_hidden_layers > 0 &&
                                 config.max_position_embeddings > 0);
}

/// A guess that tells whether a run is longer than its job.
double seconds_on_cpus(const Session& session) {
  constexpr double kRate = 1e11;  // FLOPs a second: some eight cores
  return static_cast<double>(session.tokens_per_step() * session.max_steps) *
         flops_per_token(session.engine.model, session.engine.step.seq_length) / kRate /
         session.ranks;
}

/// The answers that differ, of those that what_would_fit() changes.
std::vector<Answer> changes(const Settings& before, const Settings& after) {
  std::vector<Answer> answers;
  for (const char* key :
       {"training.micro_batch_size", "model.recompute", "parallelism.zero_stage"}) {
    if (value_of(key, after) != value_of(key, before)) {
      answers.push_back({key, value_of(key, after)});
    }
  }
  return answers;
}

/// A further line about the plan, if the GPU does not multiply all of its codes as they are.
std::string plan_remark(const Session& session, const RankMemory& rank) {
  const RunProducts products = products_of(session.engine, rank.traits);
  return rank.is_host || products.all_native()
             ? ""
             : fmt::format("\n  plan {}: {}", session.engine.plan.name,
                           describe_products(products, device_name(rank)));
}

bool on_named_gpu(const Settings& settings) {
  return settings.job.names_gpu() && settings.device != DeviceChoice::cpu;
}

}  // namespace

const Device& JobMemory::here(DeviceChoice choice) {
  if (device_ == nullptr || choice_ != choice) {
    std::string reason;
    device_ = choose_device(choice, false, reason);
    choice_ = choice;
  }
  return *device_;
}

RankMemory JobMemory::memory_of(const Settings& settings) {
  return memory_of_job(settings, [&]() -> const Device& { return here(settings.device); });
}

MemoryLedger JobMemory::planned(const Settings& settings, const RankMemory& memory) {
  const int ranks = job_ranks(settings.job);
  const Session session = open_session(settings, false, ranks);
  plan_threads(settings.threads, ranks_of_node(settings.job));
  const auto nodes = Topology::blocks(ranks, ranks_of_node(settings.job));
  return memory_of_run(largest_rank(session, dry_runs_on(memory.traits, nodes, false)),
                       memory.is_host);
}

const std::vector<Answer>& JobMemory::what_would_fit(const Settings& settings,
                                                     const RankMemory& memory) {
  if (!asked_ || *asked_ != settings) {
    asked_ = settings;
    would_fit_ = search_what_fits(settings, memory);
  }
  return would_fit_;
}

/// The first that fits of: a smaller micro-batch; with recomputation; with a stage of ZeRO too.
std::vector<Answer> JobMemory::search_what_fits(const Settings& settings,
                                                const RankMemory& memory) {
  const int64_t last_stage = job_ranks(settings.job) > 1 ? 3 : settings.parallelism.zero_stage;
  Settings changed = settings;
  for (;;) {
    for (int64_t size = settings.step.micro_batch_size; size >= 1; size /= 2) {
      changed.step.micro_batch_size = size;
      if (fits(changed, memory)) {
        return changes(settings, changed);
      }
    }
    Recompute& recompute = changed.step.decoder.recompute;
    if (recompute != Recompute::block) {
      recompute = recompute == Recompute::none ? Recompute::mlp : Recompute::block;
    } else if (++changed.parallelism.zero_stage > last_stage) {
      return {};
    }
  }
}

bool JobMemory::fits(const Settings& settings, const RankMemory& memory) {
  try {
    return memory.fits(planned(settings, memory));
  } catch (const Error&) {  // a change is refused together with the other settings
    return false;
  }
}

std::string JobMemory::remedy(const Settings& settings, const RankMemory& memory) {
  const std::vector<Answer> change = what_would_fit(settings, memory);
  if (!change.empty()) {
    return (change.size() > 1 ? "it would with all of: " : "it would with ") +
           joined(change, [](const Answer& answer) { return answer.key + " " + answer.value; });
  }
  return job_ranks(settings.job) > 1
             ? "take more ranks with parallelism.zero_stage 3, a plan with fewer bytes, or a "
               "smaller model; `fp8train layouts` tries all layouts"
             : "take several ranks with ZeRO, a plan with fewer bytes, or a smaller model";
}

std::string JobMemory::line(const Settings& settings) {
  if (!has_model(settings.model)) {
    return {};
  }
  if (settings.device == DeviceChoice::cuda && !settings.job.names_gpu() &&
      !why_cuda_is_unusable().empty()) {
    return fmt::format(
        "memory per rank: not known: {}; name the GPU to estimate for (job.gpu: h100, ...)",
        has_nvidia_gpu() ? why_cuda_is_unusable() : "this machine has no GPU");
  }
  try {
    const RankMemory memory = memory_of(settings);
    const MemoryLedger ledger = planned(settings, memory);
    const std::string remark =
        plan_remark(open_session(settings, false, job_ranks(settings.job)), memory);
    const size_t needed = ledger.total();
    if (memory.bytes == 0) {
      return fmt::format("memory per rank: {}{}", describe_bytes(needed), remark);
    }
    const auto [needs, has] = describe_both(needed, memory.bytes);
    const std::string line = fmt::format("memory per rank: {} of {}: ", needs, has);
    if (memory.fits(ledger)) {
      return line + "fits" + remark;
    }
    return fmt::format("{}DOES NOT FIT; {}{}", line, remedy(settings, memory), remark);
  } catch (const Error& error) {
    return fmt::format("memory per rank: not known: {}", split(error.what(), '\n').front());
  }
}

std::string JobMemory::obstacle(const Settings& settings) {
  try {
    const Session session = open_session(settings, false, job_ranks(settings.job));
    if (on_named_gpu(settings)) {
      plan_weights(session.engine, memory_of(settings).traits);
    }
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const DeviceError& error) {
    return fmt::format("on {}: {}", settings.job.gpu, error.what());
  } catch (const Error&) {  // files that are perhaps on the machine that trains
  }
  return {};
}

double JobMemory::duration(const Settings& settings) {
  try {
    const int ranks = job_ranks(settings.job);
    const Session session = open_session(settings, false, ranks);
    const RankMemory rank = memory_of(settings);
    if (rank.is_host || rank.gpu == nullptr) {
      return rank.is_host ? seconds_on_cpus(session) : 0;
    }
    const auto nodes = Topology::blocks(ranks, ranks_of_node(settings.job));
    const StageRuns runs =
        dry_run_stages(session.engine, ranks, dry_runs_on(rank.traits, nodes, true));
    return static_cast<double>(session.max_steps) *
           step_time(session.engine, runs, nodes, *rank.gpu).total();
  } catch (const Error&) {  // the settings are not complete
    return 0;
  }
}

bool JobMemory::knows_gpu(const Settings& settings) {
  return on_gpus(settings) && (on_named_gpu(settings) || why_cuda_is_unusable().empty());
}

JobMemory::Recommendation JobMemory::recommended_plan(const Settings& settings) {
  const std::string usual = plan_for_method({.mixed_precision = MixedPrecision::fp8});
  if (!on_gpus(settings)) {
    return {usual, "the codes of a GPU, bit for bit; bf16 is faster on a CPU"};
  }
  if (!knows_gpu(settings)) {
    return {usual, "what mixed_precision: fp8 means; name the GPU for a better one"};
  }
  const RankMemory rank = memory_of(settings);
  const PlansElsewhere elsewhere = plans_elsewhere(rank.traits);
  const auto contains = [](const std::vector<std::string>& plans, const std::string& plan) {
    return std::ranges::find(plans, plan) != plans.end();
  };
  Recommendation best = {"bf16", fmt::format("{} has no units for FP8", device_name(rank))};
  for (const PlanEntry& entry : plan_entries()) {
    if (*entry.advice != '\0' && !contains(elsewhere.in_16_bits, entry.name) &&
        !contains(elsewhere.refused, entry.name)) {
      best = {entry.name, fmt::format("for {}: {}", device_name(rank), entry.advice)};
    }
  }
  return best;
}

std::string JobMemory::plans(const Settings& settings) {
  const Recommendation best = recommended_plan(settings);
  std::string text = fmt::format("Recommended: {}, {}\n", best.plan, best.reason);
  if (!knows_gpu(settings)) {
    return text;
  }
  const RankMemory rank = memory_of(settings);
  const PlansElsewhere elsewhere = plans_elsewhere(rank.traits);
  if (!elsewhere.in_16_bits.empty()) {
    text += fmt::format("In bf16 on {}: {}\n", device_name(rank), joined(elsewhere.in_16_bits));
  }
  if (!elsewhere.refused.empty()) {
    text += fmt::format("Not on {}: {}\n", device_name(rank), joined(elsewhere.refused));
  }
  return text;
}

std::optional<std::vector<Answer>> JobMemory::fitting(const Settings& settings) {
  const bool known = names_its_machine(settings) && has_model(settings.model) &&
                     (settings.device != DeviceChoice::cuda || knows_gpu(settings));
  try {
    const RankMemory memory = known ? memory_of(settings) : RankMemory{};
    if (known && !memory.fits(planned(settings, memory))) {
      return what_would_fit(settings, memory);
    }
  } catch (const Error&) {  // the settings are not complete, or refused for something else
  }
  return std::nullopt;
}

/// None where they cannot be searched.
const std::vector<Layout>& JobMemory::layouts_of(Settings settings) {
  settings.step.decoder.recompute = Recompute::none;
  settings.parallelism = {};
  if (!laid_ || *laid_ != settings) {
    laid_ = settings;
    layouts_.clear();
    try {
      layouts_ = search_layouts(settings, memory_of(settings), job_ranks(settings.job), 1,
                                settings.step.micro_batch_size)
                     .fitting;
      std::erase_if(layouts_, [](const Layout& layout) {
        const StrategySettings& strategy = layout.settings.parallelism;  // others are not asked
        return strategy.sync_each_batch ||
               strategy.layout.schedule != ScheduleKind::one_forward_one_backward;
      });
    } catch (const Error&) {  // the settings are not complete, or refused for something else
    }
  }
  return layouts_;
}

std::string JobMemory::of_fastest_layout(const std::string& key, const Settings& settings) {
  // In the order of their questions.
  constexpr std::string_view kLayoutKeys[] = {"model.recompute", "parallelism.zero_stage",
                                              "parallelism.tensor", "parallelism.pipeline"};
  const auto* const asked = std::ranges::find(kLayoutKeys, key);
  if (asked == std::end(kLayoutKeys) || job_ranks(settings.job) == 1 || !on_named_gpu(settings) ||
      !has_model(settings.model)) {
    return {};
  }
  const std::vector<Layout>& all = layouts_of(settings);
  const auto fastest = std::ranges::find_if(all, [&](const Layout& layout) {
    return std::ranges::all_of(kLayoutKeys, [&](const std::string_view& other) {
      const std::string value = value_of(other, settings);
      const bool is_given = &other < asked || (&other > asked && value != value_of(other, {}));
      return !is_given || value_of(other, layout.settings) == value;
    });
  });
  return fastest == all.end() ? "" : value_of(*asked, fastest->settings);
}

bool JobMemory::on_gpus(const Settings& settings) {
  if (settings.device != DeviceChoice::automatic) {
    return settings.device == DeviceChoice::cuda;
  }
  return settings.job.names_gpu() || why_cuda_is_unusable().empty();
}

}  // namespace fp8train
