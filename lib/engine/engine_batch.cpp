// A batch and the numbers of its step, on the way to the device.

#include "base/error.h"
#include "device/device_questions.h"
#include "engine/engine.h"

namespace fp8train {

void Engine::upload(const Batch& batch, BatchMemory& memory) const {
  check(batch.rows == settings_.step.micro_batch_size && batch.columns == settings_.step.seq_length,
        "a batch has the shape that the engine was built for");
  if (context_ranks_ == nullptr) {
    copy_from_host(*device_, memory.tokens, batch.tokens.data());
    copy_from_host(*device_, memory.targets, batch.targets.data());
  } else {
    upload_part(batch, memory);
  }
  if (settings_.masks_documents) {
    copy_from_host(*device_, memory.document_starts, batch.document_starts.data());
  }
  memory.share = target_share(batch);
  if (settings_.counts_targets) {
    copy_from_host(*device_, memory.target_share, &memory.share);
    memory.share = target_share({});  // of what is added for each position
  }
}

ChunkDeal deal_chunks(const EngineSettings& settings, const Batch& batch) {
  const ParallelLayout& layout = settings.strategy.layout;
  if (layout.context_kind == ContextKind::heads) {
    return deal_in_order(layout.context);
  }
  return batch.document_starts.empty()
             ? deal_ends(layout.context)
             : deal_documents(batch.document_starts, batch.columns, layout.context);
}

/// The ranks of the context axis are given the same whole sequences.
void Engine::upload_part(const Batch& batch, BatchMemory& memory) const {
  if (counts_only(*device_)) {
    return;  // a dry run has no tokens
  }
  const int64_t length = settings_.length_of_rank();
  memory.chunks = deal_chunks(settings_, batch);
  std::vector<int32_t> tokens, targets, starts;
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t t = 0; t < length; ++t) {
      const int64_t position = memory.chunks.position(t, length, context_ranks_->rank());
      const auto from = static_cast<size_t>(row * batch.columns + position);
      tokens.push_back(batch.tokens[from]);
      targets.push_back(batch.targets[from]);
      const int64_t start = settings_.masks_documents ? batch.document_starts[from] : 0;
      starts.push_back(static_cast<int32_t>(t - position + start));
    }
  }
  copy_from_host(*device_, memory.tokens, tokens.data());
  copy_from_host(*device_, memory.targets, targets.data());
  copy_from_host(*device_, memory.row_starts, starts.data());
}

/// Returns the number of ranks with gradients of their own, divided by the targets of a step.
/// GradientBuckets divides by the ranks after all casts, so that no code depends on their number. A
/// batch that does not give the number of targets has one at each position.
float Engine::target_share(const Batch& batch) const {
  const int64_t positions = settings_.step.gradient_accumulation_steps * settings_.rows_of_rank();
  return batch.step_targets > 0 ? static_cast<float>(mesh().size(Group::state)) /
                                      static_cast<float>(batch.step_targets)
                                : 1.0F / static_cast<float>(positions);
}

void Engine::number_pass(const BatchMemory& memory, int64_t step_index, int64_t micro_batch) const {
  if (!memory.pass.empty()) {
    const int64_t of_ranks = step_index * settings_.step.gradient_accumulation_steps + micro_batch;
    const int64_t pass = of_ranks * mesh().size(Group::state) + mesh().index(Group::state);
    copy_from_host(*device_, memory.pass, &pass);
  }
}

}  // namespace fp8train
