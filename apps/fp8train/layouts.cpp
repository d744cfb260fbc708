#include "layouts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "comm/topology.h"
#include "model/model_config.h"
#include "train/checkpoint/save_interval.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// Assumed: a rank copies its state to the host over PCIe 4.0 at this rate, and a job that failed
/// trains again after this time.
constexpr double kHostBytesPerSecond = 25e9;
constexpr double kRestartSeconds = 300;

/// The sequences of a step that one rank computes, or ranks that share layers.
int64_t sequences_of_rank(const Settings& settings, int ranks) {
  const int64_t global = settings.training.global_batch_size;
  const int64_t tensor = settings.parallelism.layout.tensor;
  return global > 0 ? global / (ranks / tensor)
                    : settings.step.micro_batch_size * settings.step.gradient_accumulation_steps;
}

/// The numbers of ranks of a node that can share layers.
std::vector<int64_t> tensor_sizes(const Settings& settings, int ranks) {
  std::vector<int64_t> sizes;
  const int64_t of_node = std::min<int64_t>(ranks, settings.job.ranks_per_node);
  for (int64_t size = 1; size <= of_node; size *= 2) {
    if (of_node % size == 0) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> small;
  std::vector<int64_t> large;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i == 0) {
      small.push_back(i);
      if (i != number / i) {
        large.push_back(number / i);
      }
    }
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

void set_micro_batch(int64_t size, Settings& settings) {
  const int64_t global = settings.training.global_batch_size;
  const int64_t sequences =
      global > 0 ? global
                 : settings.step.micro_batch_size * settings.step.gradient_accumulation_steps;
  settings.step.micro_batch_size = size;
  settings.step.gradient_accumulation_steps = sequences / size;
}

/// The share of the job's time that trains, with saves at the run's interval or at the best one.
double goodput_of(const Settings& settings, const DryRunStep& step, double step_seconds,
                  int ranks) {
  const double given = settings.job.mtbf_seconds;
  const double mtbf = given > 0 ? given : assumed_mtbf(ranks);
  const double stall = static_cast<double>(step.state_copy) / kHostBytesPerSecond;
  const int64_t interval = settings.checkpoint.interval;
  const double between = interval > 0 ? static_cast<double>(interval) * step_seconds
                                      : best_save_seconds(std::max(stall, 1e-6), mtbf);
  return 1 / (1 + stall / between) / (1 + (between / 2 + kRestartSeconds) / mtbf);
}

/// The layouts of one stage of ZeRO and one kind of recomputation.
class StageSearch {
 public:
  StageSearch(const Settings& settings, const RankMemory& memory, int ranks)
      : settings_(settings),
        memory_(memory),
        ranks_(ranks),
        topology_(Topology::blocks(ranks, static_cast<int>(settings.job.ranks_per_node))) {}

  /// Adds all micro-batches. A larger one can need less: where a step has one only, stages 2 and 3
  /// hold no whole gradients. One alone is not exchanged in two ways.
  void search(LayoutSearch& found) const {
    for (const int64_t size : divisors(sequences_of_rank(settings_, ranks_))) {
      if (settings_.parallelism.sync_each_batch && size == sequences_of_rank(settings_, ranks_)) {
        continue;
      }
      Layout layout = plan(size);
      const bool fits = memory_.bytes == 0 || layout.bytes <= memory_.bytes;
      (fits ? found.fitting : found.too_large).push_back(std::move(layout));
    }
  }

 private:
  Layout plan(int64_t micro_batch_size) const {
    Layout layout = {.settings = settings_};
    set_micro_batch(micro_batch_size, layout.settings);
    const Session session = open_session(layout.settings, false, ranks_);
    const DryRunStep step = largest_stage(session, [&](const EngineSettings& engine) {
      return logged_step(engine, memory_.traits, topology_, 0);
    });
    layout.micro_batches = session.engine.step.gradient_accumulation_steps;
    layout.bytes = step.memory.total();
    layout.plan = session.stages.size() > 1 ? step.plan_name : "";
    layout.time = step_time(session.engine, step, *memory_.gpu);
    const double seconds = layout.time.total();
    layout.tokens_per_second = static_cast<double>(session.tokens_per_step()) / seconds;
    layout.mfu = layout.tokens_per_second / ranks_ *
                 flops_per_token(session.engine.model, session.engine.step.seq_length) /
                 (memory_.gpu->tera_flops_16bit * 1e12);
    layout.goodput = goodput_of(layout.settings, step, seconds, ranks_);
    return layout;
  }

  const Settings& settings_;
  const RankMemory& memory_;
  int ranks_;
  Topology topology_;
};

/// All stages of ZeRO and kinds of recomputation.
void search_stages(const Settings& settings, const RankMemory& memory, int ranks,
                   LayoutSearch& found) {
  const int64_t data = ranks / settings.parallelism.layout.tensor;
  for (int64_t stage = 0; stage <= (data > 1 ? 3 : 0); ++stage) {
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
      for (const bool sync_each : {false, true}) {
        if (sync_each && stage < 2) {
          continue;
        }
        Settings changed = settings;
        changed.parallelism.zero_stage = stage;
        changed.parallelism.shard_ranks = stage == 0 ? 0 : settings.parallelism.shard_ranks;
        changed.parallelism.sync_each_batch = sync_each;
        changed.step.decoder.recompute = recompute;
        if (changed.parallelism.layout.tensor > 1) {
          changed.sample.interval = 0;
        }
        try {
          StageSearch(changed, memory, ranks).search(found);
        } catch (const ConfigError& error) {
          found.refused.emplace_back(error.what());
        }
      }
    }
  }
}

}  // namespace

LayoutSearch search_layouts(const Settings& settings, const RankMemory& memory, int ranks) {
  if (settings.parallelism.layout.pipeline > 1) {
    throw ConfigError(
        "parallelism.pipeline: layouts has no times of pipelines yet; set it to 1, or plan the "
        "memory with `fp8train estimate`");
  }
  if (settings.parallelism.layout.tensor_parts > 0) {
    throw ConfigError(
        "parallelism.tensor_parts: layouts plans runs that are fast, and this makes them "
        "comparable; "
        "leave it out");
  }
  LayoutSearch found;
  Settings whole = settings;
  const int64_t given = settings.parallelism.layout.tensor;
  found.tokens_per_step =
      sequences_of_rank(settings, ranks) * (ranks / given) * settings.step.seq_length;
  for (const int64_t tensor : tensor_sizes(settings, ranks)) {
    whole.parallelism.layout.tensor = tensor;
    if (settings.training.global_batch_size == 0) {  // the tokens of a step stay
      whole.step.gradient_accumulation_steps =
          std::max<int64_t>(settings.step.gradient_accumulation_steps * tensor / given, 1);
    }
    search_stages(whole, memory, ranks, found);
  }
  if (found.fitting.empty() && found.too_large.empty()) {
    throw ConfigError(found.refused.front());
  }
  std::ranges::stable_sort(found.fitting, std::ranges::greater(), &Layout::tokens_per_second);
  std::ranges::stable_sort(found.too_large, {}, &Layout::bytes);
  return found;
}

std::string keys_of(const Layout& layout, const Settings& file) {
  const Settings& settings = layout.settings;
  const StrategySettings& strategy = settings.parallelism;
  std::string others;
  if (strategy.sync_each_batch != file.parallelism.sync_each_batch) {
    others += fmt::format(" parallelism.sync_each_batch={}", strategy.sync_each_batch);
  }
  if (strategy.shard_ranks != file.parallelism.shard_ranks) {
    others += " parallelism.shard_ranks=0";
  }
  if (settings.sample.interval != file.sample.interval) {
    others += " sample.interval=0";
  }
  const int64_t global = settings.training.global_batch_size;
  return fmt::format(
      "parallelism.tensor={} parallelism.zero_stage={}{} model.recompute={} "
      "training.micro_batch_size={} training.{}={}",
      strategy.layout.tensor, strategy.zero_stage, others,
      settings.step.decoder.recompute == Recompute::block ? "block" : "none",
      settings.step.micro_batch_size,
      global > 0 ? "global_batch_size" : "gradient_accumulation_steps",
      global > 0 ? global : layout.micro_batches);
}

std::string fit_global_batch(int ranks, int64_t micro_batch_size, Settings& settings) {
  int64_t& sequences = settings.training.global_batch_size;
  const int64_t multiple = ranks * micro_batch_size;
  if (sequences % multiple == 0) {
    return {};
  }
  const int64_t given = sequences;
  sequences = std::max<int64_t>(1, (2 * sequences + multiple) / (2 * multiple)) * multiple;
  settings.step.gradient_accumulation_steps = sequences / settings.step.micro_batch_size;
  return fmt::format(
      "batch   {} sequences instead of training.global_batch_size {}: the nearest multiple of "
      "{} ranks{}\n",
      sequences, given, ranks,
      micro_batch_size > 1 ? fmt::format(" x training.micro_batch_size {}", micro_batch_size) : "");
}

}  // namespace fp8train
