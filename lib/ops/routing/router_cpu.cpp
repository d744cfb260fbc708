// Compiled once per CPU level. Threads have rows, or sequences.

#include "ops/dispatch/cpu_operations.h"
#include "ops/routing/router_math.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

template <typename Rows>
FP8TRAIN_HD void run_rows(const Rows& of_call, const ConstView& logits) {
  const int64_t rows = logits.shape.rows();
#pragma omp parallel for schedule(static) if (logits.count() >= kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    of_call.run(row);
  }
}

}  // namespace

void route(Stream /*stream*/, const Route& call) {
  run_rows(RouteRows{call}, call.logits);
}

void count_choices(Stream /*stream*/, ConstView chosen, View counts) {
  const int64_t experts = counts.shape.back();
  const int64_t sequences = counts.shape.rows();
  const int64_t choices = chosen.count() / sequences;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    const int32_t* const from = chosen.as<int32_t>() + sequence * choices;
    float* const to = counts.as<float>() + sequence * experts;
    for (int64_t i = 0; i < experts; ++i) {
      to[i] = 0.0F;
    }
    for (int64_t i = 0; i < choices; ++i) {
      ++to[from[i]];
    }
  }
}

void add_loads(Stream /*stream*/, ConstView counts, int64_t capacity, View loads) {
  const int64_t experts = counts.shape.back();
  auto* const to = loads.as<int64_t>();
  for (int64_t i = 0; i < experts; ++i) {
    int64_t load = 0;
    for (int64_t sequence = 0; sequence < counts.shape.rows(); ++sequence) {
      load += static_cast<int64_t>(counts.as<float>()[sequence * experts + i]);
    }
    to[i] += load;
    to[experts] += load > capacity ? load - capacity : 0;
  }
}

void route_backward(Stream /*stream*/, const RouteBackward& call) {
  run_rows(RouteBackwardRows(call), call.logits);
}

void update_router_bias(Stream /*stream*/, const RouterBiasUpdate& call) {
  const LayerLoads loads = loads_of_layer(call);
  if (call.skip != nullptr && *call.skip != 0) {
    return;
  }
  for (int64_t i = 0; i < call.bias.count(); ++i) {
    call.bias.as<float>()[i] += call.rate * bias_direction(loads, call.first + i);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
