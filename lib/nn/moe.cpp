#include "nn/moe.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/math.h"
#include "device/device_questions.h"
#include "device/meta/repeated_calls.h"
#include "ops/gemm/gemm.h"
#include "ops/pointwise/elementwise.h"
#include "ops/routing/token_rows.h"

namespace fp8train {
namespace {

/// Whether two layers make the same calls: whatever their plans are called, adapters aside.
bool are_alike(const Linear& a, const Linear& b) {
  const LinearPlan& one = a.plan();
  const LinearPlan& other = b.plan();
  const Parameter& of_one = a.weight().parameter();
  const Parameter& of_other = b.weight().parameter();
  return one.fprop == other.fprop && one.dgrad == other.dgrad && one.wgrad == other.wgrad &&
         one.activation == other.activation && one.evaluate_scaled == other.evaluate_scaled &&
         one.swiglu == other.swiglu && one.remade_input == other.remade_input &&
         one.has_plain_stages == other.has_plain_stages && of_one.formats == of_other.formats &&
         of_one.gathered.form == of_other.gathered.form && of_one.trained && of_other.trained &&
         !a.has_adapters() && !b.has_adapters();
}

bool are_alike(const std::vector<Mlp>& experts) {
  return std::ranges::all_of(experts, [&](const Mlp& expert) {
    return are_alike(expert.up(), experts[0].up()) && are_alike(expert.down(), experts[0].down());
  });
}

/// Runs each of `experts`, given its index. A dry run of many that are alike runs the first, whose
/// calls and memory count for all.
template <typename Run>
void for_each_expert(const StepContext& context, const std::vector<Mlp>& experts, bool backward,
                     const Run& run) {
  const size_t count = experts.size();
  if (!counts_only(*context.device) || !are_alike(experts)) {
    for (size_t i = 0; i < count; ++i) {
      run(backward ? count - 1 - i : i);
    }
    return;
  }
  const std::set<Arena*> arenas = {context.saved, context.scratch, context.held};
  std::vector<Arena::Mark> before;
  for (const Arena* arena : arenas) {
    before.push_back(arena == nullptr ? 0 : arena->mark());
  }
  {
    const RepeatedCalls repeated(context.stream, static_cast<int64_t>(count));
    run(0);
  }
  size_t i = 0;
  for (Arena* arena : arenas) {
    if (const size_t begin = before[i++]; arena != nullptr) {
      arena->allocate((count - 1) * (arena->mark() - begin));
    }
  }
}

constexpr int64_t kUntrainedRows = 256;  // that no expert drops any of, in a pass without training

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
         std::vector<Mlp> experts, std::optional<Mlp> shared)
    : shape_(shape),
      settings_(settings),
      router_(router),
      experts_(std::move(experts)),
      shared_(std::move(shared)) {
  for (const Mlp& expert : experts_) {
    for (const Linear* linear : {&expert.up(), &expert.down()}) {
      multiple_ = std::max(multiple_, linear->plan().wgrad.k_multiple());
    }
  }
}

int64_t Moe::capacity(int64_t rows, bool trains) const {
  const double mean =
      static_cast<double>(shape_.per_token * rows) / static_cast<double>(shape_.experts);
  const double factor = settings_.capacity_factor * (trains ? 1.0 : 2.0);
  const int64_t least = trains ? 1 : kUntrainedRows;
  const double wanted = std::max(std::ceil(factor * mean), static_cast<double>(least));
  return round_up(wanted < static_cast<double>(rows) ? static_cast<int64_t>(wanted) : rows,
                  multiple_);
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
    Arena& arena = expert.up().memory_of_plain_input(context);
    if (&arena != context.scratch) {
      return arena;
    }
  }
  return *context.scratch;
}

/// Runs the router, up to the slots of experts.
void Moe::choose(const StepContext& context, Saved& saved, int64_t capacity) const {
  ArenaScope scope(*context.scratch);
  ops::gemm(context.stream, {.a = {.plain = in_fp32(context, saved.x)},
                             .b = {.plain = router_.weight->value, .transposed = true},
                             .c = saved.logits});
  ops::route(context.stream,
             {.rule = rule_of(shape_),
              .logits = saved.logits,
              .bias = router_.bias == nullptr ? ConstView{} : ConstView(router_.bias->value),
              .keys = allocate(*context.scratch, DType::f32, saved.logits.shape),
              .chosen = saved.chosen,
              .probabilities = saved.probabilities});
  ops::assign_slots(context.stream, {.chosen = saved.chosen,
                                     .experts = shape_.experts,
                                     .capacity = capacity,
                                     .slots = saved.slots,
                                     .sources = saved.sources});
}

void Moe::forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = y.shape.rows();
  const int64_t width = y.shape.back();
  const int64_t rows_of_expert = capacity(rows, context.training);
  const int64_t slots = shape_.experts * rows_of_expert;
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
  choose(context, saved, rows_of_expert);
  if (!context.training && !untrained_loads_.empty()) {
    count_loads(context, 1, saved, untrained_loads_);
  }
  const View inputs = allocate(memory_of_inputs(context), y.dtype, {slots, width});
  ops::send_rows(context.stream, saved.x, saved.sources, saved.probabilities, false, inputs);
  saved.experts.resize(experts_.size());
  for_each_expert(context, experts_, false, [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * rows_of_expert;
    experts_[i].forward(context, rows_of(inputs, first, rows_of_expert),
                        rows_of(saved.outputs, first, rows_of_expert), saved.experts[i]);
  });
  if (shared_) {
    shared_->forward(context, saved.x, y, saved.shared);
  }
  ops::return_rows(context.stream, {.x = saved.outputs,
                                    .slots = saved.slots,
                                    .weights = saved.probabilities,
                                    .adds = shared_.has_value(),
                                    .y = y});
}

/// Returns the choices of experts in each of `batch` sequences, in scratch, and adds them to
/// `loads`.
View Moe::count_loads(const StepContext& context, int64_t batch, const Saved& saved,
                      const View& loads) const {
  const View counts = allocate(*context.scratch, DType::i32, {batch, shape_.experts});
  ops::count_choices(context.stream, saved.chosen, counts);
  if (!loads.empty()) {
    ops::add_loads(context.stream, counts, saved.sources.count() / shape_.experts, loads);
  }
  return counts;
}

/// Returns the gradient of x, fp32 in scratch, and adds to that of the weight.
View Moe::backward_of_router(const StepContext& context, ConstView dy, int64_t batch,
                             const Saved& saved) const {
  const View dx = allocate(*context.scratch, DType::f32, saved.x.shape);
  ArenaScope scope(*context.scratch);
  const View products = allocate(*context.scratch, DType::f32, saved.slots.shape);
  ops::dot_rows(context.stream, dy, saved.outputs, saved.slots, products);
  const View counts = count_loads(context, batch, saved, loads_);
  const View d_logits = allocate(*context.scratch, DType::f32, saved.logits.shape);
  const bool balances = settings_.balance_loss != 0.0;
  ops::route_backward(context.stream, {.rule = rule_of(shape_),
                                       .logits = saved.logits,
                                       .chosen = saved.chosen,
                                       .gradients = products,
                                       .d_logits = d_logits,
                                       .counts = balances ? ConstView(counts) : ConstView{},
                                       .balance_loss = static_cast<float>(settings_.balance_loss),
                                       .z_loss = static_cast<float>(settings_.z_loss),
                                       .gradient_scale = context.loss_gradient.loss_scale,
                                       .gradient_factor = context.loss_gradient.factor});
  const Parameter& weight = *router_.weight;
  if (weight.trained) {
    ops::gemm(context.stream, {.a = {.plain = d_logits, .transposed = true},
                               .b = {.plain = in_fp32(context, saved.x)},
                               .c = weight.gradient,
                               .beta = context.overwrites_gradients ? 0.0F : 1.0F});
  }
  ops::gemm(context.stream, {.a = {.plain = d_logits}, .b = {.plain = weight.value}, .c = dx});
  return dx;
}

void Moe::backward(const StepContext& context, ConstView dy, View dx, int64_t batch,
                   Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const View dx_of_router = backward_of_router(context, dy, batch, saved);
  if (shared_) {
    shared_->backward(context, dy, dx, saved.shared);
  }
  const View gradients = allocate(*context.scratch, dy.dtype, saved.outputs.shape);
  ops::send_rows(context.stream, dy, saved.sources, saved.probabilities, true, gradients);
  const int64_t rows = saved.sources.count() / shape_.experts;
  for_each_expert(context, experts_, true, [&](size_t i) {
    // That of the input replaces that of the output, which has been read by then.
    const View of_expert = rows_of(gradients, static_cast<int64_t>(i) * rows, rows);
    experts_[i].backward(context, of_expert, of_expert, saved.experts[i]);
  });
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
  for_each_expert(context, experts_, true,
                  [&](size_t i) { experts_[i].add_weight_gradients(context, saved.experts[i]); });
}

}  // namespace fp8train
