#include "layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/names.h"
#include "layout_runs.h"
#include "model/model_config.h"
#include "train/session.h"

namespace fp8train {
namespace {

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
std::vector<ParallelLayout> sizes_of_axes(const Settings& settings, const ModelConfig& model,
                                          int ranks) {
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
        layout.schedule_file.clear();
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

/// The layouts with one set of sizes, one stage of ZeRO and one kind of recomputation.
class StageSearch {
 public:
  /// `sequences`: of a step and of the ranks that train on the same batches. `sizes`: of
  /// micro-batches.
  StageSearch(const Settings& settings, const LayoutRuns& runs, int64_t sequences,
              const std::vector<int64_t>& sizes)
      : settings_(settings), runs_(runs), sequences_(sequences), sizes_(sizes) {}

  /// Adds all micro-batches but those of `too_large`, to which it adds what does not fit; false:
  /// none fits. A larger one needs more, except where a step has one only: stages 2 and 3 then hold
  /// no whole gradients. One alone is not exchanged in two ways.
  bool search(LayoutSearch& found, std::set<int64_t>& too_large) const {
    bool is_too_large = false;
    const size_t fitting = found.fitting.size();
    const StrategySettings& strategy = settings_.parallelism;
    for (const int64_t size : sizes_) {
      const bool is_alone = size == sequences_ && strategy.layout.pipeline == 1;
      const bool is_other = strategy.zero_stage == 2 && !strategy.sync_each_batch;
      if (strategy.sync_each_batch ? is_alone : is_other && !is_alone) {
        continue;  // a stage 2 with whole gradients is stage 1
      }
      const bool is_larger = is_too_large && !(is_alone && strategy.zero_stage >= 2);
      if (is_larger || too_large.contains(size)) {
        too_large.insert(size);
        ++found.larger;
        continue;
      }
      Layout layout = runs_.plan(with_micro_batch(size), &found.scheduled);
      is_too_large = !runs_.fits(layout);
      if (is_too_large) {
        too_large.insert(size);
      }
      (is_too_large ? found.too_large : found.fitting).push_back(std::move(layout));
      found.tried(found);
    }
    return found.fitting.size() > fitting;
  }

 private:
  Settings with_micro_batch(int64_t size) const {
    Settings settings = settings_;
    const int64_t global = settings_.training.global_batch_size;
    settings.step.micro_batch_size = size;
    settings.step.gradient_accumulation_steps = (global > 0 ? global : sequences_) / size;
    return settings;
  }

  const Settings& settings_;
  const LayoutRuns& runs_;
  int64_t sequences_;
  const std::vector<int64_t>& sizes_;
};

/// With as many blocks in a stage, what does not fit where all are recomputed does not fit where
/// less is.
constexpr int64_t kSeveralBlocks = 3;

/// Half of a block is recomputed only for micro-batches that do not fit otherwise.
void search_recompute(Settings changed, const LayoutRuns& runs, int64_t sequences,
                      std::vector<int64_t> sizes, LayoutSearch& found) {
  const int64_t stages = changed.parallelism.layout.pipeline;
  const bool has_several = runs.model().num_hidden_layers >= kSeveralBlocks * stages;
  std::set<int64_t> of_blocks;  // micro-batches that do not fit where blocks are recomputed
  for (const Recompute recompute :
       {Recompute::block, Recompute::none, Recompute::mlp, Recompute::attention}) {
    if (recompute == Recompute::block && changed.step.decoder.offloads_saved) {
      continue;  // blocks store nothing
    }
    changed.step.decoder.recompute = recompute;
    const size_t before = found.fitting.size();
    std::set<int64_t> too_large = of_blocks;
    try {
      if (!StageSearch(changed, runs, sequences, sizes).search(found, too_large) &&
          recompute == Recompute::block) {
        return;
      }
    } catch (const ConfigError& error) {
      found.refused.emplace_back(error.what());
    }
    of_blocks = recompute == Recompute::block && has_several ? too_large : of_blocks;
    for (size_t i = before; recompute == Recompute::none && i < found.fitting.size(); ++i) {
      std::erase(sizes, found.fitting[i].settings.step.micro_batch_size);
    }
  }
}

/// All stages of ZeRO and kinds of recomputation. What does not fit with recomputation does not
/// without.
void search_stages(const Settings& settings, const LayoutRuns& runs, int64_t data,
                   int64_t sequences, const std::vector<int64_t>& sizes, LayoutSearch& found) {
  const ParallelLayout& layout = settings.parallelism.layout;
  const bool shares = data * layout.context > 1;
  for (int64_t stage = 0; stage <= (shares ? 3 : 0); ++stage) {
    for (const bool sync_each : {false, true}) {
      if (sync_each && (stage < 2 || layout.pipeline > 1)) {
        continue;
      }
      Settings changed = settings;
      changed.parallelism.zero_stage = stage;
      changed.parallelism.shard_ranks = stage == 0 ? 0 : settings.parallelism.shard_ranks;
      changed.parallelism.sync_each_batch = sync_each;
      search_recompute(changed, runs, sequences, sizes, found);
    }
  }
}

void sort_by_speed(std::vector<Layout>& layouts) {
  std::ranges::stable_sort(layouts, std::ranges::greater(), &Layout::tokens_per_second);
}

/// Makes the dry runs of layouts with other schedules that would be among the fastest.
void add_scheduled(const LayoutRuns& runs, size_t top, LayoutSearch& found) {
  sort_by_speed(found.fitting);
  sort_by_speed(found.scheduled);
  for (const Layout& layout : found.scheduled) {
    if (found.fitting.size() >= top &&
        layout.tokens_per_second <= found.fitting[top - 1].tokens_per_second) {
      break;
    }
    try {
      Layout planned = runs.plan(layout.settings, nullptr);
      if (runs.fits(planned)) {
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

/// Replaces estimates among the `top` fastest by the runs, until there are none.
void run_fastest(const LayoutRuns& runs, size_t top, LayoutSearch& found) {
  std::vector<Layout>& all = found.fitting;
  for (size_t i = 0; i < std::min(top, all.size());) {
    if (!all[i].is_estimate) {
      ++i;
      continue;
    }
    Layout layout = runs.run(all[i].settings, runs.limit());
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
    (runs.fits(layout) ? all : found.too_large).push_back(std::move(layout));
    found.tried(found);
    sort_by_speed(all);
    i = 0;
  }
}

/// Sorts layouts that are too large by memory. Looks for what the first one needs, and not only
/// nearly or at least; one that fits after all is moved to those.
void find_smallest(const LayoutRuns& runs, LayoutSearch& found) {
  constexpr int kMaxRuns = 8;
  std::vector<Layout>& layouts = found.too_large;
  std::ranges::stable_sort(layouts, {}, &Layout::bytes);
  for (int tries = 0; tries < kMaxRuns && !layouts.empty() &&
                      (layouts.front().is_bound || layouts.front().is_estimate);
       ++tries) {
    Layout layout = runs.run(layouts.front().settings, SIZE_MAX);
    layouts.erase(layouts.begin());
    (runs.fits(layout) ? found.fitting : layouts).push_back(std::move(layout));
    std::ranges::stable_sort(layouts, {}, &Layout::bytes);
  }
  sort_by_speed(found.fitting);
}

}  // namespace

bool can_be_shared(const Settings& settings, int ranks) {
  const int64_t sequences = sequences_of(settings, ranks);
  const ModelConfig model = open_session(settings, false).engine.model;  // which can be in a folder
  return std::ranges::any_of(
      sizes_of_axes(settings, model, ranks),
      [&](const ParallelLayout& layout) { return sequences % data_ranks(layout, ranks) == 0; });
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
  const LayoutRuns runs(settings, memory, ranks);
  const std::vector<ParallelLayout> axes = sizes_of_axes(settings, runs.model(), ranks);
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
        search_stages(whole, runs, data, sequences / data, sizes, found);
      } else {
        found.indivisible.push_back(data);
      }
    }
  };
  search_axes();
  run_fastest(runs, 1, found);  // whether any fits is no estimate
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
  add_scheduled(runs, static_cast<size_t>(top), found);
  run_fastest(runs, static_cast<size_t>(top), found);
  find_smallest(runs, found);
  return found;
}

}  // namespace fp8train
