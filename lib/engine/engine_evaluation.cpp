// Passes of an Engine that train nothing.

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "engine/engine.h"
#include "engine/pipeline_stage.h"

namespace fp8train {

void Engine::begin_evaluation() {
  clear_totals(kEvaluationTotals);
  if (const View loads = model_.evaluation_loads(); !loads.empty()) {
    device_->fill_zero(loads.data, loads.bytes());
  }
}

void Engine::evaluate(const Batch& batch) {
  // Rows behind the last sample have no targets.
  const auto target = std::find_if(batch.targets.rbegin(), batch.targets.rend(),
                                   [](int32_t id) { return id != kIgnoredTarget; });
  const int64_t rows = batch.targets.empty()
                           ? batch.rows
                           : ceil_div<int64_t>(batch.targets.rend() - target, batch.columns);
  counted_rows_ = rows * batch.columns / settings_.strategy.layout.context;
  if (batch.rows == settings_.step.micro_batch_size && batch.columns == settings_.step.seq_length) {
    run_batch(batch, nullptr);
  } else {
    evaluate_smaller(batch, nullptr);
  }
  counted_rows_ = 0;
}

LossReport Engine::evaluation_loss() {
  if (stage_ != nullptr) {
    stage_->messages.finish();
  }
  LossReport report = read_totals(kEvaluationTotals);
  report.dropped = settings_.model.moe.experts > 0 ? evaluation_drops() : 0.0;
  return report;
}

/// `losses`: device memory for the loss of each target, or null.
void Engine::evaluate_smaller(const Batch& batch, float* losses) {
  check(batch.rows <= settings_.step.micro_batch_size && batch.columns <= settings_.step.seq_length,
        "a batch fits into the shape that the engine was built for");
  check(stage_ == nullptr && tensor_ranks_ == nullptr && context_ranks_ == nullptr &&
            expert_ranks_ == nullptr && !settings_.masks_documents,
        "ranks that have parts of a model or of sequences evaluate whole batches");
  const MicroBatchMemory memory = memory_of();
  const Shape shape = {batch.rows, batch.columns};
  const View tokens{memory.batch.tokens.view().data, DType::i32, shape};
  const View targets{memory.batch.targets.view().data, DType::i32, shape};
  copy_from_host(*device_, tokens, batch.tokens.data());
  copy_from_host(*device_, targets, batch.targets.data());
  LossTotals losses_and_totals = totals(kEvaluationTotals);
  losses_and_totals.of_targets = losses;
  model_.evaluate(context(memory, false, false), {.tokens = tokens, .targets = targets},
                  losses_and_totals);
}

std::vector<float> Engine::target_losses(const Batch& batch) {
  const Tensor losses(*device_, DType::f32, {batch.rows * batch.columns}, MemoryCategory::batch);
  evaluate_smaller(batch, losses.view().as<float>());
  std::vector<float> result(static_cast<size_t>(batch.rows * batch.columns));
  copy_to_host(*device_, result.data(), losses);
  return result;
}

}  // namespace fp8train
