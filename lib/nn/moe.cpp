#include "nn/moe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/math.h"
#include "device/device_questions.h"
#include "device/meta/repeated_calls.h"
#include "nn/partial_gradient.h"
#include "ops/gemm/planned_gemm.h"
#include "ops/loss/cross_entropy.h"
#include "ops/pointwise/elementwise.h"
#include "ops/routing/token_rows.h"

namespace fp8train {
namespace {

/// Whether two layers make the same calls, adapters aside.
bool are_alike(const Linear& a, const Linear& b) {
  const Parameter& of_a = a.weight().parameter();
  const Parameter& of_b = b.weight().parameter();
  return make_same_calls(a.plan(), b.plan()) && of_a.formats == of_b.formats &&
         of_a.gathered.form == of_b.gathered.form && of_a.trained && of_b.trained &&
         !a.has_adapters() && !b.has_adapters();
}

bool are_alike(const std::vector<Mlp>& experts) {
  return std::ranges::all_of(experts, [&](const Mlp& expert) {
    return are_alike(expert.up(), experts[0].up()) && are_alike(expert.down(), experts[0].down());
  });
}

/// Runs each of `experts`, given its index. A dry run of many that are alike runs the first
/// `different` ones, of which the last one's calls and memory count for the rest.
template <typename Run>
void for_each_expert(const StepContext& context, const std::vector<Mlp>& experts, bool backward,
                     size_t different, const Run& run) {
  const size_t count = experts.size();
  if (!counts_only(*context.device) || !are_alike(experts)) {
    for (size_t i = 0; i < count; ++i) {
      run(backward ? count - 1 - i : i);
    }
    return;
  }
  for (size_t i = 0; i + 1 < different; ++i) {
    run(i);
  }
  const size_t last = different - 1;
  const std::set<Arena*> arenas = {context.saved, context.scratch, context.held};
  std::vector<Arena::Mark> before;
  for (const Arena* arena : arenas) {
    before.push_back(arena == nullptr ? 0 : arena->mark());
  }
  {
    const RepeatedCalls repeated(context.stream, static_cast<int64_t>(count - last));
    run(last);
  }
  size_t i = 0;
  for (Arena* arena : arenas) {
    if (const size_t begin = before[i++]; arena != nullptr) {
      arena->allocate((count - 1 - last) * (arena->mark() - begin));
    }
  }
}

/// Of a dropless expert that is trained a multiple: tiles of scales have as many rows, and tensors
/// of experts need no more memory than one of all their rows, since arenas align none of them up.
constexpr int64_t kAlignedRows = 128;

constexpr int64_t kUntrainedRows = 256;  // that no expert drops any of, in a pass without training

/// Ranks that share layers have whole experts.
StepContext of_experts(const StepContext& context) {
  StepContext own = context;
  own.tensor_ranks = nullptr;
  own.tensor_parts = 1;
  return own;
}

ops::RouterRule rule_of(const MoeShape& shape) {
  return {.experts = shape.experts,
          .per_token = shape.per_token,
          .groups = shape.groups,
          .groups_per_token = shape.groups_per_token,
          .sigmoid = shape.score == RouterScore::sigmoid,
          .normalizes = shape.normalizes,
          .scale = shape.scale};
}

/// Returns x in fp32, in scratch unless it is fp32.
ConstView in_fp32(const StepContext& context, ConstView x) {
  if (x.dtype == DType::f32) {
    return x;
  }
  const View copy = allocate(*context.scratch, DType::f32, x.shape);
  ops::cast(context.stream, x, copy);
  return copy;
}

}  // namespace

Moe::Moe(const MoeShape& shape, const MoeSettings& settings, Router router,
         std::vector<Mlp> experts, std::optional<Mlp> shared, const Dispatch& dispatch)
    : shape_(shape),
      settings_(settings),
      router_(router),
      experts_(std::move(experts)),
      shared_(std::move(shared)),
      dispatch_(dispatch.format) {
  for (const Mlp& expert : experts_) {
    for (const Linear* linear : {&expert.up(), &expert.down()}) {
      multiple_ = std::max(multiple_, linear->plan().wgrad.k_multiple());
    }
  }
  const auto own = std::ssize(experts_) / dispatch.share.ranks;
  const auto first = experts_.begin() + own * dispatch.share.rank;
  experts_.erase(first + own, experts_.end());
  experts_.erase(experts_.begin(), first);
}

DroplessRows Moe::dropless(int64_t rows, bool trains) const {
  return {shape_.experts, shape_.per_token, rows,
          trains ? std::max(multiple_, kAlignedRows) : multiple_};
}

int64_t Moe::capacity(int64_t rows, bool trains) const {
  if (settings_.dropless) {
    return dropless(rows, trains).largest();
  }
  const double mean =
      static_cast<double>(shape_.per_token * rows) / static_cast<double>(shape_.experts);
  const double factor = !trains     ? 2.0 * settings_.capacity_factor
                        : warms_up_ ? settings_.warmup_capacity_factor
                                    : settings_.capacity_factor;
  const int64_t least = trains ? 1 : kUntrainedRows;
  const double wanted = std::max(std::ceil(factor * mean), static_cast<double>(least));
  return round_up(wanted < static_cast<double>(rows) ? static_cast<int64_t>(wanted) : rows,
                  multiple_);
}

int64_t Moe::slots(int64_t rows, bool trains) const {
  return settings_.dropless ? dropless(rows, trains).bound()
                            : shape_.experts * capacity(rows, trains);
}

InputTensor Moe::allocate_input(const StepContext& context, const View& y) const {
  Arena* arena = context.training ? context.saved : context.scratch;
  if (shared_ && shared_->up().holds_plain_input(context)) {
    arena = context.held;
  }
  return allocate(*arena, y.dtype, y.shape);
}

/// Returns where the rows of experts belong.
Arena& Moe::memory_of_inputs(const StepContext& context) const {
  for (const Mlp& expert : experts_) {
    Arena& arena = expert.up().memory_of_plain_input(of_experts(context));
    if (&arena != context.scratch) {
      return arena;
    }
  }
  return *context.scratch;
}

/// Sets the rows of each expert that this rank has, and returns those of a dropless mixture on the
/// device; empty: all have equally many.
View Moe::find_begins(const StepContext& context, Saved& saved) const {
  const int64_t slots = saved.sources.count();
  saved.begins.clear();
  if (!settings_.dropless) {
    const auto experts = std::ssize(experts_);
    for (int64_t i = 0; i <= experts; ++i) {
      saved.begins.push_back(i * (slots / experts));
    }
    return {};
  }
  const DroplessRows own = dropless(saved.chosen.shape.rows(), context.training);
  const View counts = allocate(*context.scratch, DType::f32, {1, shape_.experts});
  ops::count_choices(context.stream, saved.chosen, counts);
  std::vector<float> tokens(static_cast<size_t>(shape_.experts));
  copy_to_host(*context.device, tokens.data(), counts);
  int64_t end = 0;
  for (const float of_expert : tokens) {
    saved.begins.push_back(end);
    if (counts_only(*context.device)) {
      end += end == 0 ? own.largest() : own.other();
    } else {
      end += own.of_expert(static_cast<int64_t>(of_expert));
    }
  }
  check(end <= slots, "a dropless mixture has slots for all choices");
  saved.begins.push_back(end);
  std::vector<int32_t> begins(saved.begins.begin(), saved.begins.end());
  begins.back() = static_cast<int32_t>(slots);  // those behind the last expert's are unused
  const View on_device = allocate(*context.scratch, DType::i32, {shape_.experts + 1});
  copy_from_host(*context.device, on_device, begins.data());
  return on_device;
}

/// Runs the router, up to the slots of experts.
void Moe::choose(const StepContext& context, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const ConstView x = in_fp32(context, saved.x);
  ops::planned_gemm(context.stream, *context.device, *context.scratch,
                    {.a = x, .b = {router_.weight->value, true}, .c = saved.logits});
  ops::route(context.stream,
             {.rule = rule_of(shape_),
              .logits = saved.logits,
              .bias = router_.bias == nullptr ? ConstView{} : ConstView(router_.bias->value),
              .keys = allocate(*context.scratch, DType::f32, saved.logits.shape),
              .chosen = saved.chosen,
              .probabilities = saved.probabilities});
  ops::assign_slots(context.stream, {.chosen = saved.chosen,
                                     .experts = shape_.experts,
                                     .capacity = saved.sources.count() / shape_.experts,
                                     .begins = find_begins(context, saved),
                                     .slots = saved.slots,
                                     .sources = saved.sources});
}

void Moe::forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = y.shape.rows();
  const int64_t width = y.shape.back();
  const int64_t rows_of_expert = capacity(rows, context.training);
  const int64_t slots = this->slots(rows, context.training);
  Arena& arena = context.training ? *context.saved : *context.scratch;
  const auto stored = [&](DType type, const Shape& extents) {
    return allocate(arena, type, extents);
  };
  saved.x = x.plain;
  saved.logits = stored(DType::f32, {rows, shape_.experts});
  saved.probabilities = stored(DType::f32, {rows, shape_.per_token});
  saved.chosen = stored(DType::i32, {rows, shape_.per_token});
  saved.slots = stored(DType::i32, {rows, shape_.per_token});
  saved.sources = stored(DType::i32, {slots});
  saved.outputs = stored(y.dtype, {slots, width});
  choose(context, saved);
  const int64_t before = context.tensor_ranks == nullptr ? 0 : rows * context.tensor_ranks->rank();
  if (const int64_t counted = std::clamp<int64_t>(context.counted_rows - before, 0, rows);
      counted > 0 && !untrained_loads_.empty()) {
    const View counts = allocate(*context.scratch, DType::f32, {1, shape_.experts});
    ops::count_choices(context.stream, rows_of(saved.chosen, 0, counted), counts);
    ops::add_loads(context.stream, counts, rows_of_expert, untrained_loads_);
  }
  const View inputs = allocate(memory_of_inputs(context), y.dtype, {slots, width});
  ops::send_rows(context.stream, saved.x, saved.sources, saved.probabilities, false, inputs);
  check(context.expert_ranks != nullptr || std::ssize(experts_) == shape_.experts,
        "a rank without all experts reaches the others");
  send(context, inputs);
  saved.experts.resize(experts_.size());
  const StepContext own = of_experts(context);
  for_each_expert(own, experts_, false, different(), [&](size_t i) {
    experts_[i].forward(own, of_expert(saved, inputs, i), of_expert(saved, saved.outputs, i),
                        saved.experts[i]);
  });
  send_back(context, saved.outputs);
  if (shared_) {
    shared_->forward(context, saved.x, y, saved.shared);
  }
  ops::return_rows(context.stream, {.x = saved.outputs,
                                    .slots = saved.slots,
                                    .weights = saved.probabilities,
                                    .adds = shared_.has_value(),
                                    .y = y});
}

/// Returns the choices in the sequences of which this rank has rows, [sequences, E], of all ranks
/// that have some, where the balance loss reads them; and the number of these ranks. Adds to the
/// loads.
std::pair<View, int64_t> Moe::count(const StepContext& context, int64_t batch,
                                    const Saved& saved) const {
  RankExchange* const rows = context.tensor_ranks;
  const int64_t ranks = rows == nullptr ? 1 : rows->ranks();
  const int64_t own = balances() ? std::max<int64_t>(batch / ranks, 1) : 1;
  const View all = allocate(*context.scratch, DType::f32, {batch, shape_.experts});
  const int64_t first = rows == nullptr ? 0 : batch * rows->rank() / ranks;
  const View counts = rows_of(all, first, own);
  ops::fill(context.stream, all, 0.0F);
  ops::count_choices(context.stream, saved.chosen, counts);
  if (!loads_.empty()) {
    ops::add_loads(context.stream, counts, capacity(saved.chosen.shape.rows(), true), loads_);
  }
  if (balances() && ranks > batch) {
    rows->sum(context, all);
  }
  RankExchange* const sequences = context.context_ranks;
  if (balances() && sequences != nullptr) {
    sequences->sum(context, counts);
  }
  return {counts,
          std::max<int64_t>(ranks / batch, 1) * (sequences == nullptr ? 1 : sequences->ranks())};
}

/// losses: fp32 [2, rows], of each token.
void Moe::add_losses(const StepContext& context, const View& losses, const Saved& saved) const {
  const int64_t rows = losses.shape.back();
  const View no_targets = {saved.chosen.data, DType::i32, {rows}};  // which are not counted
  for (int64_t i = 0; i < 2; ++i) {
    ops::accumulate_loss(context.stream, reshaped(rows_of(losses, i, 1), {rows}), no_targets,
                         losses_ + i, nullptr);
  }
}

/// Returns the gradient of x, fp32 in scratch, and adds to that of the weight.
View Moe::backward_of_router(const StepContext& context, ConstView dy, int64_t batch,
                             const Saved& saved) const {
  const View dx = allocate(*context.scratch, DType::f32, saved.x.shape);
  ArenaScope scope(*context.scratch);
  const View products = allocate(*context.scratch, DType::f32, saved.slots.shape);
  ops::dot_rows(context.stream, dy, saved.outputs, saved.slots, products);
  const auto [counts, ranks_of_sequence] = count(context, batch, saved);
  const View d_logits = allocate(*context.scratch, DType::f32, saved.logits.shape);
  const bool sums = context.collect_statistics && losses_ != nullptr && settings_.has_losses();
  const View losses =
      sums ? allocate(*context.scratch, DType::f32, {2, saved.x.shape.rows()}) : View{};
  ops::route_backward(context.stream, {.rule = rule_of(shape_),
                                       .logits = saved.logits,
                                       .chosen = saved.chosen,
                                       .gradients = products,
                                       .d_logits = d_logits,
                                       .counts = balances() ? ConstView(counts) : ConstView{},
                                       .ranks = ranks_of_sequence,
                                       .balance_loss = static_cast<float>(settings_.balance_loss),
                                       .z_loss = static_cast<float>(settings_.z_loss),
                                       .gradient_scale = context.loss_gradient.loss_scale,
                                       .gradient_factor = context.loss_gradient.factor,
                                       .losses = losses});
  if (sums) {
    add_losses(context, losses, saved);
  }
  const Parameter& weight = *router_.weight;
  if (weight.trained) {
    const ConstView x = in_fp32(context, saved.x);
    PartialGradients<1>(context, {&weight})
        .add(x.shape.rows(), [&](const SumRange& range, const std::array<View, 1>& gradients,
                                 bool overwrites) {
          const auto part = [&](ConstView of) { return rows_of(of, range.first, range.count); };
          ops::planned_gemm(context.stream, *context.device, *context.scratch,
                            {.a = {part(d_logits), true},
                             .b = part(x),
                             .c = gradients[0],
                             .beta = overwrites ? 0.0F : 1.0F});
        });
  }
  ops::planned_gemm(context.stream, *context.device, *context.scratch,
                    {.a = d_logits, .b = weight.value, .c = dx});
  return dx;
}

void Moe::backward(const StepContext& context, ConstView dy, View dx, int64_t batch,
                   Saved& saved) const {
  ArenaScope scope(*context.scratch);
  dropless_rows_ += settings_.dropless ? saved.begins.back() : 0;
  const View dx_of_router = backward_of_router(context, dy, batch, saved);
  if (shared_) {
    shared_->backward(context, dy, dx, saved.shared);
  }
  const View gradients = allocate(*context.scratch, dy.dtype, saved.outputs.shape);
  ops::send_rows(context.stream, dy, saved.sources, saved.probabilities, true, gradients);
  send(context, gradients);
  const StepContext own = of_experts(context);
  for_each_expert(own, experts_, true, different(), [&](size_t i) {
    // That of the input replaces that of the output, which has been read by then.
    const View rows = of_expert(saved, gradients, i);
    experts_[i].backward(own, rows, rows, saved.experts[i]);
  });
  send_back(context, gradients);
  ops::return_rows(context.stream, {.x = gradients,
                                    .slots = saved.slots,
                                    .weights = {},
                                    .addend = dx_of_router,
                                    .adds = shared_.has_value(),
                                    .y = dx});
}

void Moe::add_weight_gradients(const StepContext& context, const Saved& saved) const {
  if (shared_) {
    shared_->add_weight_gradients(context, saved.shared);
  }
  const StepContext own = of_experts(context);
  for_each_expert(own, experts_, true, different(),
                  [&](size_t i) { experts_[i].add_weight_gradients(own, saved.experts[i]); });
}

}  // namespace fp8train
