#include "device/memory_ledger.h"

#include <algorithm>

namespace fp8train {

std::string_view name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::weights:
      return "weights";
    case MemoryCategory::master_weights:
      return "master weights";
    case MemoryCategory::quantized_weights:
      return "GEMM copies of weights";
    case MemoryCategory::gradients:
      return "gradients";
    case MemoryCategory::optimizer_state:
      return "optimizer state";
    case MemoryCategory::saved_activations:
      return "saved activations";
    case MemoryCategory::workspace:
      return "workspace";
    case MemoryCategory::scaling_state:
      return "scaling state";
    case MemoryCategory::batch:
      return "batch";
    case MemoryCategory::communication:
      return "communication";
    case MemoryCategory::state_copy:
      return "copy for checkpoints";
    case MemoryCategory::offloaded:
      return "offloaded states";
    case MemoryCategory::offloaded_activations:
      return "offloaded activations";
  }
  return "?";
}

void MemoryLedger::add(MemoryCategory category, size_t bytes) {
  current_[index(category)] += bytes;
  total_ += is_on_host(category) ? 0 : bytes;
  peak_ = std::max(peak_, total_);
  ++allocations_;
}

void MemoryLedger::remove(MemoryCategory category, size_t bytes) {
  current_[index(category)] -= bytes;
  total_ -= is_on_host(category) ? 0 : bytes;
}

}  // namespace fp8train
