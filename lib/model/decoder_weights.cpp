#include <algorithm>
// The work on a model's weights between an update and their use: GEMM operands are made of the
// weights, or of parts that ranks have gathered, unit by unit.

#include "model/decoder.h"

namespace fp8train {

/// Makes this rank's parts of the weights that ranks gather.
void Decoder::make_parts(const StepContext& context) {
  bool found = false;
  if (experts_.ranks > 1) {
    scaling_.clear_current_weights(context.stream);  // also of experts that other ranks have
  }
  for (size_t unit = 0; unit < units(); ++unit) {
    for_each_linear(
        unit, [&](Linear& linear) { found = linear.weight().find_part_amax(context) || found; });
  }
  if (found) {
    context.gatherer->combine_amax(scaling_.shared_amax(), false);
    if (context.tensor_ranks != nullptr) {
      context.tensor_ranks->largest(context, scaling_.shared_amax());
    }
  }
  for (const bool of_experts : {false, true}) {
    const View block_amax = parameters_.shards()->block_amax(of_experts);
    if (!block_amax.empty()) {
      context.gatherer->combine_amax(block_amax, of_experts);
    }
  }
  for (size_t unit = 0; unit < units(); ++unit) {
    for_each_linear(unit, [&](Linear& linear) {
      linear.weight().agree_on_rows(context);
      linear.weight().make_part(context);
    });
  }
}

void Decoder::refresh_weights(const StepContext& context, bool after_update) {
  if (context.gatherer != nullptr) {
    make_parts(context);
    if (context.gatherer->gathers_per_pass()) {
      // use() makes the rest before each use, or this function at once if statistics are taken of
      // these values.
      const bool samples = context.collect_statistics && !scaling_.empty();
      for (size_t unit = 0; samples && unit < units(); ++unit) {
        use(context, unit, unit + 1 < units() ? unit + 1 : ParameterGatherer::kNone);
      }
      return;
    }
  }
  for (size_t unit = 0; unit < units(); ++unit) {
    auto what = after_update ? LinearWeight::Refresh::after_update : LinearWeight::Refresh::all;
    if (context.gatherer != nullptr) {
      const size_t next = unit + 1 < units() ? unit + 1 : ParameterGatherer::kNone;
      context.gatherer->gather(unit, next);
      what = LinearWeight::Refresh::all;
    }
    for_each_linear(unit, [&](Linear& linear) { linear.weight().refresh(context, what); });
  }
}

void Decoder::use(const StepContext& context, size_t unit, size_t next) {
  if (context.gatherer == nullptr || !context.gatherer->gathers_per_pass()) {
    return;
  }
  using Gathered = ParameterGatherer::Gathered;
  const Gathered gathered = context.gatherer->gather(unit, next);
  if (gathered == Gathered::stay) {
    return;
  }
  StepContext refreshing = context;
  refreshing.training = true;  // what is recorded of new weights does not depend on the pass
  const auto what =
      gathered == Gathered::again ? LinearWeight::Refresh::again : LinearWeight::Refresh::all;
  for_each_linear(unit, [&](Linear& linear) { linear.weight().refresh(refreshing, what); });
}

void Decoder::use_head(const StepContext& context, size_t next) {
  if (tied() && !part_.embeds) {
    use(context, 0, ParameterGatherer::kNone);  // nothing has embedded by this table
  }
  use(context, blocks_.size() + 1, next);
}

void Decoder::begin_gradients(const StepContext& context, size_t unit) const {
  if (context.gatherer != nullptr) {
    context.gatherer->begin_gradients(unit, context.overwrites_gradients);
  }
}

void Decoder::enter_step(int64_t step) {
  for (Block& block : blocks_) {
    if (block.moe() != nullptr) {
      block.moe()->enter_step(step);
    }
  }
}

int64_t Decoder::expert_rows(int64_t tokens) {
  int64_t rows = 0;
  for (Block& block : blocks_) {
    rows += block.moe() == nullptr ? 0 : block.moe()->slots(tokens, true);
  }
  return rows;
}

int64_t Decoder::take_dropless_rows() {
  int64_t rows = 0;
  for (Block& block : blocks_) {
    rows += block.moe() == nullptr ? 0 : block.moe()->take_dropless_rows();
  }
  return rows;
}

void Decoder::balance_experts(const Stream& stream, ConstView loads, float rate,
                              const int32_t* skip) {
  int64_t layer = 0;
  for (Block& block : blocks_) {
    if (block.moe() == nullptr) {
      continue;
    }
    ops::RouterBiasUpdate update = {.loads = loads, .layer = layer++, .rate = rate, .skip = skip};
    const Parameter* const bias = block.moe()->bias();
    if (bias != nullptr && !std::ranges::count(frozen_biases_, bias)) {
      const bool is_part = parameters_.shards() != nullptr;
      update.bias = is_part ? bias->updated.value.codes : bias->value;
      update.first = is_part ? bias->updated.first : 0;
      ops::update_router_bias(stream, update);
    }
  }
}

}  // namespace fp8train
