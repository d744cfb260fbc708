#include "layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/names.h"
#include "comm/topology.h"
#include "model/model_config.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// Assumed: a rank copies its state to the host over PCIe 4.0 at this rate, and a job that failed
/// trains again after this time.
constexpr double kHostBytesPerSecond = 25e9;
constexpr double kRestartSeconds = 300;

/// The shortest part of a sequence that ranks share; shorter ones are read as other sequences.
constexpr int64_t kMinPart = 8192;

int64_t data_ranks(const ParallelLayout& layout, int ranks) {
  return ranks / (layout.tensor * layout.pipeline * layout.context);
}

/// The sequences of a step of all ranks.
int64_t sequences_of(const Settings& settings, int ranks) {
  const ParallelLayout& layout = settings.parallelism.layout;
  const int64_t global = settings.training.global_batch_size;
  return global > 0 ? global
                    : settings.step.micro_batch_size * settings.step.gradient_accumulation_steps *
                          data_ranks(layout, ranks);
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

/// The layouts with a context axis too, in the kind that needs fewer bytes where the heads allow
/// it.
void add_context_sizes(const ParallelLayout& one, const ModelConfig& model, int64_t length,
                       int ranks, std::vector<ParallelLayout>& all) {
  for (int64_t context = 1; data_ranks(one, ranks) % context == 0 &&
                            (context == 1 || length % (context * kMinPart) == 0);
       context *= 2) {
    ParallelLayout& layout = all.emplace_back(one);
    layout.context = context;
    layout.context_kind = model.num_key_value_heads / one.tensor % context == 0
                              ? ContextKind::heads
                              : ContextKind::gather;
  }
}

/// Each layout with all experts on a rank, with a part on each of a node, and on as many as can be.
std::vector<ParallelLayout> with_expert_sizes(const std::vector<ParallelLayout>& layouts,
                                              int64_t experts, int64_t ranks, int64_t of_node) {
  std::vector<ParallelLayout> all;
  for (const ParallelLayout& one : layouts) {
    const int64_t of_stage = ranks / one.pipeline;
    const int64_t most = std::gcd(experts, of_stage);
    for (const int64_t size : std::set{one.tensor, std::gcd(most, of_node), most}) {
      if (experts % size == 0 && of_stage % size == 0 && size % one.tensor == 0) {
        all.emplace_back(one).expert = size;
      }
    }
  }
  return all;
}

/// The sizes of axes that `ranks` ranks can have: layers are shared within a node.
std::vector<ParallelLayout> sizes_of_axes(const Settings& settings, int ranks) {
  const ModelConfig model = open_session(settings, false).engine.model;  // which can be in a folder
  const int64_t blocks = model.num_hidden_layers;
  const ParallelLayout& given = settings.parallelism.layout;
  std::vector<ParallelLayout> all;
  const int64_t of_node = std::min<int64_t>(ranks, settings.job.ranks_per_node);
  for (int64_t tensor = 1; tensor <= of_node; tensor *= 2) {
    for (const int64_t pipeline : divisors(of_node % tensor == 0 ? ranks / tensor : 1)) {
      if (of_node % tensor == 0 && pipeline <= blocks) {
        ParallelLayout layout = given;
        layout.context = 1;
        layout.expert = 1;
        layout.tensor = tensor;
        layout.pipeline = pipeline;
        layout.schedule = ScheduleKind::one_forward_one_backward;
        layout.virtual_stages = 1;
        if (pipeline != given.pipeline || given.virtual_stages > 1) {
          layout.stage_blocks.clear();
        }
        add_context_sizes(layout, model, settings.step.seq_length, ranks, all);
      }
    }
  }
  return model.moe.experts == 0 ? all : with_expert_sizes(all, model.moe.experts, ranks, of_node);
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

/// The most chunks of a stage that are tried.
constexpr int64_t kMaxChunks = 8;

/// The layouts with one set of sizes, one stage of ZeRO and one kind of recomputation.
class StageSearch {
 public:
  /// `sequences`: of a step and of the ranks that train on the same batches. `sizes`: of
  /// micro-batches.
  StageSearch(const Settings& settings, const RankMemory& memory, int ranks, int64_t sequences,
              std::vector<int64_t> sizes)
      : settings_(settings),
        memory_(memory),
        ranks_(ranks),
        sequences_(sequences),
        sizes_(std::move(sizes)),
        topology_(Topology::blocks(ranks, static_cast<int>(settings.job.ranks_per_node))) {}

  /// Adds all micro-batches; false: none fits. A larger one needs more, except where a step has one
  /// only: stages 2 and 3 then hold no whole gradients. One alone is not exchanged in two ways.
  bool search(LayoutSearch& found) const {
    bool is_too_large = false;
    const size_t fitting = found.fitting.size();
    const StrategySettings& strategy = settings_.parallelism;
    for (const int64_t size : sizes_) {
      const bool is_alone = size == sequences_ && strategy.layout.pipeline == 1;
      const bool is_other = strategy.zero_stage == 2 && !strategy.sync_each_batch;
      if (strategy.sync_each_batch ? is_alone : is_other && !is_alone) {
        continue;  // a stage 2 with whole gradients is stage 1
      }
      if (is_too_large && !(is_alone && strategy.zero_stage >= 2)) {
        ++found.larger;
        continue;
      }
      Layout layout = plan(with_micro_batch(size), &found.scheduled, limit());
      is_too_large = !fits(layout.bytes);
      (is_too_large ? found.too_large : found.fitting).push_back(std::move(layout));
      found.tried(found);
    }
    return found.fitting.size() > fitting;
  }

  /// Makes the dry run of a layout; `others` (null: none) gets it with the schedules with which the
  /// same passes take less time. `limit`: where it ends.
  Layout plan(const Settings& settings, std::vector<Layout>* others, size_t limit) const {
    Layout layout = {.settings = settings};
    const Session session = open_session(settings, false, ranks_);
    bool one_is_too_large = false;  // then the others need no dry run
    StageRuns runs = largest_stage_runs(session, [&](const EngineSettings& engine, int rank) {
      DryRunStep of_rank;
      if (!one_is_too_large) {
        of_rank = logged_step(engine, memory_.traits, topology_, rank, limit);
        one_is_too_large = of_rank.memory.total() > limit;
      }
      return of_rank;
    });
    const DryRunStep& step = runs.largest_run();
    layout.micro_batches = session.engine.step.gradient_accumulation_steps;
    layout.bytes = step.memory.total();
    layout.is_bound = one_is_too_large && limit < SIZE_MAX;
    layout.plan = session.stages.size() > 1 ? step.plan_name : "";
    if (one_is_too_large) {
      return layout;
    }
    set_time(session, session.engine, runs, layout);
    if (others != nullptr && settings.parallelism.layout.pipeline > 1) {
      add_schedules(session, runs, layout, *others);
    }
    return layout;
  }

  bool fits(size_t bytes) const { return bytes <= limit(); }
  size_t limit() const { return memory_.bytes == 0 ? SIZE_MAX : memory_.bytes; }

 private:
  Settings with_micro_batch(int64_t size) const {
    Settings settings = settings_;
    const int64_t global = settings_.training.global_batch_size;
    settings.step.micro_batch_size = size;
    settings.step.gradient_accumulation_steps = (global > 0 ? global : sequences_) / size;
    return settings;
  }

  void set_time(const Session& session, const EngineSettings& engine, StageRuns& runs,
                Layout& layout) const {
    layout.time = step_time(engine, runs, topology_, *memory_.gpu);
    const double seconds = layout.time.total();
    layout.tokens_per_second = static_cast<double>(session.tokens_per_step()) / seconds;
    layout.mfu = layout.tokens_per_second / ranks_ *
                 flops_per_token(engine.model, engine.step.seq_length) /
                 (memory_.gpu->tera_flops_16bit * 1e12);
    layout.goodput = goodput_of(layout.settings, runs.largest_run(), seconds, ranks_);
  }

  /// With one chunk in each stage zero_bubble, with several interleaved.
  void add_schedules(const Session& session, StageRuns& runs, const Layout& layout,
                     std::vector<Layout>& others) const {
    const int64_t stages = layout.settings.parallelism.layout.pipeline;
    const int64_t blocks = session.engine.model.num_hidden_layers;
    const bool in_groups = layout.micro_batches % stages == 0;
    for (int64_t chunks = 1; chunks <= kMaxChunks && chunks * stages <= blocks; chunks *= 2) {
      if (chunks > 1 && !in_groups) {
        break;
      }
      Layout other = layout;
      EngineSettings engine = session.engine;
      ParallelLayout& changed = engine.strategy.layout;
      changed.schedule = chunks == 1 ? ScheduleKind::zero_bubble : ScheduleKind::interleaved;
      changed.virtual_stages = chunks;
      if (chunks > 1) {
        changed.stage_blocks.clear();
      }
      other.settings.parallelism.layout = changed;
      set_time(session, engine, runs, other);
      if (other.tokens_per_second > layout.tokens_per_second) {
        others.push_back(std::move(other));
      }
    }
  }

  const Settings& settings_;
  const RankMemory& memory_;
  int ranks_;
  int64_t sequences_;
  std::vector<int64_t> sizes_;
  Topology topology_;
};

/// Half of a block is recomputed only for micro-batches that do not fit otherwise.
void search_recompute(Settings changed, const RankMemory& memory, int ranks, int64_t sequences,
                      std::vector<int64_t> sizes, LayoutSearch& found) {
  for (const Recompute recompute :
       {Recompute::block, Recompute::none, Recompute::mlp, Recompute::attention}) {
    if (recompute == Recompute::block && changed.step.decoder.offloads_saved) {
      continue;  // blocks store nothing
    }
    changed.step.decoder.recompute = recompute;
    const size_t before = found.fitting.size();
    try {
      if (!StageSearch(changed, memory, ranks, sequences, sizes).search(found) &&
          recompute == Recompute::block) {
        return;
      }
    } catch (const ConfigError& error) {
      found.refused.emplace_back(error.what());
    }
    for (size_t i = before; recompute == Recompute::none && i < found.fitting.size(); ++i) {
      std::erase(sizes, found.fitting[i].settings.step.micro_batch_size);
    }
  }
}

/// All stages of ZeRO and kinds of recomputation. What does not fit with recomputation does not
/// without.
void search_stages(const Settings& settings, const RankMemory& memory, int ranks, int64_t sequences,
                   const std::vector<int64_t>& sizes, LayoutSearch& found) {
  const ParallelLayout& layout = settings.parallelism.layout;
  const bool shares = data_ranks(layout, ranks) * layout.context > 1;
  for (int64_t stage = 0; stage <= (shares ? 3 : 0); ++stage) {
    for (const bool sync_each : {false, true}) {
      if (sync_each && (stage < 2 || layout.pipeline > 1)) {
        continue;
      }
      Settings changed = settings;
      changed.parallelism.zero_stage = stage;
      changed.parallelism.shard_ranks = stage == 0 ? 0 : settings.parallelism.shard_ranks;
      changed.parallelism.sync_each_batch = sync_each;
      search_recompute(changed, memory, ranks, sequences, sizes, found);
    }
  }
}

void sort_by_speed(std::vector<Layout>& layouts) {
  std::ranges::stable_sort(layouts, std::ranges::greater(), &Layout::tokens_per_second);
}

/// Makes the dry runs of layouts with other schedules that would be among the fastest.
void add_scheduled(const StageSearch& search, size_t top, LayoutSearch& found) {
  sort_by_speed(found.fitting);
  sort_by_speed(found.scheduled);
  for (const Layout& layout : found.scheduled) {
    if (found.fitting.size() >= top &&
        layout.tokens_per_second <= found.fitting[top - 1].tokens_per_second) {
      break;
    }
    try {
      Layout planned = search.plan(layout.settings, nullptr, search.limit());
      if (search.fits(planned.bytes)) {
        found.fitting.push_back(std::move(planned));
        sort_by_speed(found.fitting);
      } else {
        ++found.larger;
      }
    } catch (const ConfigError& error) {
      found.refused.emplace_back(error.what());
    }
  }
}

/// Sorts layouts by memory. Looks for what the first one needs, and not only at least.
void find_smallest(const StageSearch& search, std::vector<Layout>& layouts) {
  std::ranges::stable_sort(layouts, {}, &Layout::bytes);
  for (int tries = 0; tries < 3 && !layouts.empty() && layouts.front().is_bound; ++tries) {
    layouts.front() = search.plan(layouts.front().settings, nullptr, SIZE_MAX);
    std::ranges::stable_sort(layouts, {}, &Layout::bytes);
  }
}

}  // namespace

bool can_be_shared(const Settings& settings, int ranks) {
  const int64_t sequences = sequences_of(settings, ranks);
  return std::ranges::any_of(sizes_of_axes(settings, ranks), [&](const ParallelLayout& layout) {
    return sequences % data_ranks(layout, ranks) == 0;
  });
}

LayoutSearch search_layouts(const Settings& settings, const RankMemory& memory, int ranks,
                            int64_t top, int64_t micro_batch_size,
                            const std::function<void(const LayoutSearch&)>& tried) {
  if (settings.parallelism.layout.tensor_parts > 0) {
    throw ConfigError(
        "parallelism.tensor_parts makes runs comparable, and layouts plans fast ones; leave it "
        "out");
  }
  LayoutSearch found;
  found.tried = tried;
  const int64_t sequences = sequences_of(settings, ranks);
  found.tokens_per_step = sequences * settings.step.seq_length;
  Settings whole = settings;
  const std::vector<ParallelLayout> axes = sizes_of_axes(settings, ranks);
  const auto search_axes = [&] {
    for (const ParallelLayout& layout : axes) {
      const int64_t data = data_ranks(layout, ranks);
      const bool tries = whole.step.decoder.offloads_saved && !settings.step.decoder.offloads_saved;
      if (tries && layout.pipeline > 1) {
        continue;  // has no implementation
      }
      if (sequences % data == 0) {
        whole.parallelism.layout = layout;
        std::vector<int64_t> sizes = divisors(sequences / data);
        std::erase_if(
            sizes, [&](int64_t size) { return micro_batch_size > 0 && size != micro_batch_size; });
        search_stages(whole, memory, ranks, sequences / data, sizes, found);
      } else {
        found.indivisible.push_back(data);
      }
    }
  };
  search_axes();
  if (found.fitting.empty() && !memory.is_host && !settings.optimizer.offloads) {
    whole.optimizer.offloads = true;
    search_axes();
  }
  const bool all_recompute = std::ranges::all_of(found.fitting, [](const Layout& layout) {
    return layout.settings.step.decoder.recompute == Recompute::block;
  });
  bool& offloads_saved = whole.step.decoder.offloads_saved;
  if (all_recompute && !memory.is_host && !offloads_saved) {
    offloads_saved = true;  // needs no less memory than recomputation, and may take less time
    search_axes();
  }
  if (found.fitting.empty() && found.too_large.empty()) {
    throw ConfigError(found.refused.empty()
                          ? fmt::format("no layout of {} ranks can share {} sequences of a step; "
                                        "set training.global_batch_size",
                                        ranks, sequences)
                          : found.refused.front());
  }
  const StageSearch search(settings, memory, ranks, sequences, {});
  add_scheduled(search, static_cast<size_t>(top), found);
  find_smallest(search, found.too_large);
  return found;
}

}  // namespace fp8train
