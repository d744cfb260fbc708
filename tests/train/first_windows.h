#pragma once
// Overflows, and first windows that are short enough to end.

#include <limits>

#include "engine/engine.h"
#include "support/parameters.h"

namespace fp8train::test {

/// Histories of x and dy of so many steps.
inline EngineSettings with_window(EngineSettings settings, int steps) {
  for (TensorFormat* format :
       {&settings.plan.fprop.a, &settings.plan.dgrad.a, &settings.plan.wgrad.a,
        &settings.plan.wgrad.b, &settings.plan.saved_activation}) {
    format->delayed.history_length = steps;
  }
  return settings;
}

/// While `train` runs the first element of a gain is infinite.
template <typename Train>
void with_overflow(Engine& engine, const Train& train,
                   const char* gain = "layers.1.attention_norm.weight") {
  const ParameterStore& store = engine.model().parameters();
  const float before =
      exchange_first(engine.device(), store, gain, std::numeric_limits<float>::infinity());
  train();
  exchange_first(engine.device(), store, gain, before);
}

}  // namespace fp8train::test
