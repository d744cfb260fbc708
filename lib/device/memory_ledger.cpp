#include "device/memory_ledger.h"

#include <algorithm>
#include <iterator>

namespace fp8train {

std::string_view name_of(MemoryCategory category) {
  static constexpr std::string_view kNames[] = {"weights",
                                                "master weights",
                                                "GEMM copies of weights",
                                                "gradients",
                                                "optimizer state",
                                                "saved activations",
                                                "workspace",
                                                "scaling state",
                                                "batch",
                                                "communication",
                                                "copy for checkpoints",
                                                "offloaded states",
                                                "offloaded activations"};
  static_assert(std::size(kNames) == kMemoryCategories);
  return kNames[static_cast<size_t>(category)];
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
