#pragma once
// The settings of tests that train Llama (small_llama_model()), and their batches.

#include <algorithm>
#include <string>
#include <vector>

#include "base/philox.h"
#include "engine/engine.h"
#include "ops/storage/storage.h"
#include "optim/registry.h"
#include "support/sanitized.h"
#include "support/small_model.h"

namespace fp8train::test {

constexpr int64_t kSmallRows = 2;      ///< sequences of a micro-batch
constexpr int64_t kSmallColumns = 16;  ///< tokens of a sequence

inline EngineSettings small_llama(const std::string& plan, int64_t accumulation = 1) {
  EngineSettings settings;
  settings.model = small_llama_model();
  settings.plan = plan_named(plan);
  settings.step = {.seq_length = kSmallColumns,
                   .micro_batch_size = kSmallRows,
                   .gradient_accumulation_steps = accumulation,
                   .seed = 0};
  settings.optimizer.lr = 1e-3;
  return settings;
}

/// The settings with each optimizer of the table.
inline std::vector<EngineSettings> with_each_optimizer(const EngineSettings& settings) {
  std::vector<EngineSettings> all;
  for (const OptimizerEntry& entry : optimizers()) {
    all.push_back(settings);
    all.back().optimizer.name = entry.name;
  }
  return all;
}

/// Tokens and targets drawn from Philox keyed by `index`.
inline Batch random_batch(uint64_t index, int64_t rows = kSmallRows,
                          int64_t columns = kSmallColumns) {
  Batch batch;
  batch.rows = rows;
  batch.columns = columns;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const PhiloxBlock bits = philox(index, 0, static_cast<uint64_t>(i));
    batch.tokens.push_back(static_cast<int32_t>(bits.word[0] % kSmallVocabulary));
    batch.targets.push_back(static_cast<int32_t>(bits.word[1] % kSmallVocabulary));
  }
  return batch;
}

/// The value of each parameter in fp32. Collective where ranks have parts of them.
inline std::vector<std::vector<float>> values_by_parameter(Engine& engine) {
  struct Part {
    int64_t first = 0, count = 0;
  };
  std::vector<std::vector<float>> values;
  const ParameterStore& store = engine.model().parameters();
  for (const auto& parameter : store.all()) {
    std::vector<float>& whole = values.emplace_back(static_cast<size_t>(parameter->shape.count()));
    if (store.shards() == nullptr) {
      value_to_host(engine.device(), *parameter, whole.data());
      continue;
    }
    const Encoded& own = parameter->updated.value;
    const Part part = {parameter->updated.first, own.count()};
    if (part.count > 0) {
      const Tensor decoded(engine.device(), DType::f32, {part.count}, MemoryCategory::workspace);
      ops::read_stored(engine.device().stream(), own, decoded);
      copy_to_host(engine.device(), whole.data() + part.first, decoded);
    }
    Communicator* const comm =
        engine.mesh().group(parameter->of_experts() ? Group::expert_state : Group::state);
    if (comm == nullptr) {
      continue;
    }
    std::vector<float> all(whole.size() * static_cast<size_t>(comm->size()));
    comm->all_gather(Communicator::host_stream(), whole.data(), all.data(),
                     whole.size() * sizeof(float))
        .wait();
    const float* of_rank = all.data();
    for (const Part& one : comm->all_gather_values(part)) {
      std::copy_n(of_rank + one.first, one.count, whole.data() + one.first);
      of_rank += whole.size();
    }
  }
  return values;
}

/// The same in a row.
inline std::vector<float> values_of(Engine& engine) {
  std::vector<float> all;
  for (const std::vector<float>& values : values_by_parameter(engine)) {
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// The plans that a test compares: all, or under a sanitizer one of each kind. Every plan takes a
/// step under each sanitizer in tests/train/engine_test.cpp.
inline std::vector<std::string> compared_plans() {
  if (!kSanitized) {
    return plan_names();
  }
  return {"fp32",   "bf16", "fp16",    "te-delayed", "te-blockwise", "torchao-rowwise",
          "fp8-lm", "coat", "fp8-lean"};
}

}  // namespace fp8train::test
