#include "train/one_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "comm/mesh.h"
#include "device/device.h"
#include "engine/dry_run.h"
#include "model/linear_sites.h"
#include "model/lora.h"
#include "parallel/layout.h"

namespace fp8train {
namespace {

constexpr int64_t kMaxParameters = int64_t{8} << 20;
constexpr int64_t kMaxDivisor = 64;  // of widths
constexpr int64_t kMinTokens = 64;   // of a sequence

/// Returns the largest divisor of `size` that is at most `limit`.
int64_t reduced(int64_t size, int64_t limit) {
  int64_t least = std::min(size, limit);
  while (size % least != 0) {
    --least;
  }
  return least;
}

/// Returns size / divisor, rounded up so that the parts which divide `size` divide it too.
int64_t narrowed(int64_t size, int64_t divisor, int64_t parts) {
  return divisor == 1 ? size : round_up(ceil_div(size, divisor), std::gcd(size, parts));
}

/// Sets the sizes of the axes and returns the ranks.
Topology reduce_layout(StrategySettings& strategy, const Topology& ranks) {
  ParallelLayout& layout = strategy.layout;
  const int64_t data = mesh_shape(layout, ranks).data;
  const bool groups = strategy.shard_ranks != 0 && data >= 4;
  const bool divides_experts = layout.expert > 1;
  const bool repeats_experts =
      divides_experts && data * layout.context * layout.tensor > layout.expert;
  layout.context = reduced(layout.context, 2);
  const int others = (layout.pipeline > 1 ? 1 : 0) + (layout.context > 1 ? 1 : 0);
  layout.tensor = reduced(layout.tensor, divides_experts ? 2 : 8 >> others);
  layout.tensor_parts = std::min(layout.tensor_parts, 2 * layout.tensor);
  layout.pipeline = std::min<int64_t>(layout.pipeline, layout.tensor * layout.context > 2 ? 2 : 4);
  layout.expert = divides_experts && layout.tensor > 1 ? layout.tensor : reduced(layout.expert, 2);
  layout.stage_blocks.clear();
  if (!layout.given_schedule.empty()) {  // of other numbers of stages and micro-batches
    layout.schedule = layout.virtual_stages > 1        ? ScheduleKind::interleaved
                      : layout.given_schedule.splits() ? ScheduleKind::zero_bubble
                                                       : ScheduleKind::one_forward_one_backward;
    layout.given_schedule = {};
  }
  strategy.shard_ranks = groups ? 2 : 0;
  strategy.bucket_bytes = std::min(strategy.bucket_bytes, int64_t{1} << 20);
  const bool needs_four = repeats_experts && layout.tensor * layout.context < layout.expert;
  const auto all = static_cast<int>(std::min<int64_t>(data, groups || needs_four ? 4 : 2) *
                                    layout.tensor * layout.pipeline * layout.context);
  if (all == 1 && ranks.size() > 1) {
    throw ConfigError(
        fmt::format("parallelism.tensor is {}, and no smaller number of ranks divides it: there "
                    "is nothing to compare with one rank",
                    strategy.layout.tensor));
  }
  return Topology::blocks(all, all);
}

/// Leaves some blocks, the first and last of which may be exempt as in the run.
void reduce_blocks(EngineSettings& engine) {
  ExemptionRules& exempt = engine.plan.exemptions;
  const int64_t blocks = engine.model.num_hidden_layers;
  exempt.first_blocks = std::min<int64_t>(exempt.first_blocks, 1);
  exempt.last_blocks = std::min<int64_t>(exempt.last_blocks, 1);
  engine.model.num_hidden_layers = std::min(
      blocks, std::max(engine.strategy.layout.pipeline * engine.strategy.layout.virtual_stages,
                       exempt.first_blocks + exempt.last_blocks) +
                  1);
  engine.model.first_window_layer =
      std::min(engine.model.first_window_layer, engine.model.num_hidden_layers);
  std::vector<int64_t>& dense = engine.model.dense_layers;
  std::erase_if(dense, [&](int64_t block) { return block >= engine.model.num_hidden_layers; });
  if (std::ssize(dense) == engine.model.num_hidden_layers) {
    dense.pop_back();  // one has experts
  }
}

/// Leaves some experts of each group, and their widths divided.
void narrow_experts(MoeShape& moe, int64_t divisor, int64_t parts) {
  constexpr int64_t kOfGroup = 4;
  if (moe.experts == 0 || divisor == 1) {
    return;
  }
  moe.experts = moe.groups * std::min(moe.experts / moe.groups, kOfGroup);
  moe.per_token = std::min(moe.per_token, 2 * moe.groups_per_token);
  moe.width = narrowed(moe.width, divisor, parts);
  moe.shared_width = narrowed(moe.shared_width, divisor, parts);
}

void narrow(EngineSettings& engine, int64_t divisor) {
  constexpr int64_t kBlock = 128;  // of formats with a scale for each
  constexpr int64_t kVocabulary = 512;
  const ParallelLayout& layout = engine.strategy.layout;
  const int64_t parts = std::max(layout.tensor, layout.tensor_parts);
  ModelConfig& model = engine.model;
  const int64_t padding = 16 * parts;
  if (model.vocab_size > 2 * (kVocabulary + padding)) {
    model.vocab_size = round_up(kVocabulary, padding) + model.vocab_size % padding;
  }
  const bool swaps = layout.context_kind == ContextKind::heads;
  const int64_t of_heads = parts * (swaps ? layout.context : 1);
  const int64_t queries = model.num_attention_heads / model.num_key_value_heads;
  model.num_key_value_heads = narrowed(model.num_key_value_heads, divisor, of_heads);
  model.num_attention_heads =
      model.num_key_value_heads * (divisor == 1 ? queries : std::min<int64_t>(queries, 2));
  model.hidden_size = narrowed(model.hidden_size, divisor, kBlock * parts);
  model.intermediate_size = narrowed(model.intermediate_size, divisor, kBlock * parts);
  narrow_experts(model.moe, divisor, kBlock * parts);
  if (model.moe.experts > 0 && (layout.tensor > 1 || layout.context > 1)) {
    // A capacity is of a rank's tokens: what is dropped would be another part on one rank.
    engine.step.decoder.moe.capacity_warmup = 0;
    double& factor = engine.step.decoder.moe.capacity_factor;
    factor = std::max(
        factor, static_cast<double>(model.moe.experts) / static_cast<double>(model.moe.per_token));
  }
  engine.plan.exemptions.min_dimension /= divisor;
}

/// Keeps the patterns for which `fits` does not throw.
template <typename Pattern, typename Fits>
void keep_matching(std::vector<Pattern>& patterns, const Fits& fits) {
  std::erase_if(patterns, [&](const Pattern& pattern) {
    try {
      fits(pattern);
      return false;
    } catch (const ConfigError&) {
      return true;
    }
  });
}

void drop_patterns(EngineSettings& engine) {
  const std::vector<LinearSite> sites = linear_sites(engine.model);
  PrecisionPlan none = engine.plan;
  none.exemptions.patterns.clear();
  none.layers.clear();
  keep_matching(engine.plan.exemptions.patterns, [&](const std::string& pattern) {
    PrecisionPlan one = none;
    one.exemptions.patterns = {pattern};
    plan_linears(one, sites);
  });
  keep_matching(engine.plan.layers, [&](const LayerPlan& layer) {
    PrecisionPlan one = none;
    one.layers = {layer};
    plan_linears(one, sites);
  });
  if (engine.model.lora.is_on()) {
    keep_matching(engine.model.lora.targets, [&](const std::string& target) {
      ModelConfig one = engine.model;
      one.lora.targets = {target};
      lora_pieces(one);
    });
  }
  std::vector<std::string>& frozen = engine.step.decoder.frozen;
  if (!frozen.empty()) {
    const std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
    const std::vector<std::string> names =
        Decoder(*meta, engine.model, none, {}).parameters().names();
    keep_matching(frozen, [&](const std::string& pattern) {
      check_pattern("training.frozen", pattern, "parameter", names);
    });
  }
}

void reduce_batch(EngineSettings& engine) {
  StepSettings& step = engine.step;
  step.micro_batch_size = std::min<int64_t>(step.micro_batch_size, 2);
  const ParallelLayout& layout = engine.strategy.layout;
  int64_t& count = step.gradient_accumulation_steps;
  count = layout.schedule == ScheduleKind::interleaved ? layout.pipeline  // they take a multiple
                                                       : std::min(count, layout.pipeline + 1);
}

/// Sets the shortest sequences with which all stages run. Returns the error of the longest if none
/// does.
std::exception_ptr find_length(SmallRun& run) {
  const int64_t longest = run.engine.step.seq_length;
  const int stages = static_cast<int>(run.engine.strategy.layout.pipeline);
  for (int64_t length = std::min(kMinTokens, longest);; length = std::min(2 * length, longest)) {
    run.engine.step.seq_length = length;
    try {
      for (int stage = 0; stage < stages; ++stage) {
        dry_run_step(run.engine, {}, run.ranks, stage * run.ranks.size() / stages);
      }
      return nullptr;
    } catch (const ConfigError&) {
      if (length == longest) {
        return std::current_exception();
      }
    }
  }
}

}  // namespace

SmallRun small_run(const EngineSettings& engine, const Topology& ranks) {
  SmallRun whole{.engine = engine, .ranks = ranks};
  whole.engine.plain_steps.clear();
  whole.engine.loss_history = 0;
  whole.engine.samples = nullptr;
  whole.ranks = reduce_layout(whole.engine.strategy, ranks);
  reduce_blocks(whole.engine);
  reduce_batch(whole.engine);
  drop_patterns(whole.engine);
  SmallRun wide = whole;
  if (const std::exception_ptr refused = find_length(wide); refused != nullptr) {
    std::rethrow_exception(refused);
  }
  // The widest of few parameters or, where they are refused, the next wider one.
  std::vector<SmallRun> few, many;
  for (int64_t divisor = 1; divisor <= kMaxDivisor; divisor *= 2) {
    SmallRun run = whole;
    run.divided = divisor;
    narrow(run.engine, divisor);
    (parameter_count(run.engine.model) <= kMaxParameters ? few : many).push_back(std::move(run));
  }
  few.insert(few.end(), std::make_move_iterator(many.rbegin()),
             std::make_move_iterator(many.rend()));
  const auto found =
      std::ranges::find_if(few, [](SmallRun& run) { return find_length(run) == nullptr; });
  check(found != few.end(), "one of the smaller runs is the run itself, but for its depth");
  return std::move(*found);
}

}  // namespace fp8train
