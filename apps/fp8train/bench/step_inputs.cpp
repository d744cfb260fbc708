#include "bench/step_inputs.h"

#include <algorithm>
#include <vector>

#include "base/philox.h"
#include "bench/bench.h"

namespace fp8train {

void set_quick_weights(Device& device, ParameterStore& store) {
  int64_t largest = 0;
  for (const auto& parameter : store.all()) {
    largest = std::max(largest, parameter->shape.count());
  }
  constexpr float kRange = 0.035F;  // deviation 0.02
  std::vector<float> drawn = uniform_values(largest);
  for (float& value : drawn) {
    value *= kRange;
  }
  for (const auto& parameter : store.all()) {
    if (parameter->init == Init::normal) {
      set_value(device, *parameter, drawn.data());
    } else {
      const std::vector<float> values(static_cast<size_t>(parameter->shape.count()),
                                      parameter->init == Init::ones ? 1.0F : 0.0F);
      set_value(device, *parameter, values.data());
    }
  }
}

Batch random_batch(const EngineSettings& settings, int rank) {
  Batch batch;
  batch.rows = settings.step.micro_batch_size;
  batch.columns = settings.step.seq_length;
  const auto vocabulary = static_cast<uint32_t>(settings.model.vocab_size);
  for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
    const PhiloxBlock bits = philox(2, static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
    batch.tokens.push_back(static_cast<int32_t>(bits.word[0] % vocabulary));
    batch.targets.push_back(static_cast<int32_t>(bits.word[1] % vocabulary));
  }
  return batch;
}

}  // namespace fp8train
