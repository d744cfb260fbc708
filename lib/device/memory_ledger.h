#pragma once
// The ledger of memory: every buffer is charged to a category. The memory table at the start of a
// run and `check` print it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fp8train {

enum class MemoryCategory : uint8_t {
  weights,            ///< parameters as the plan stores them
  master_weights,     ///< higher-precision copies that the optimizer updates
  quantized_weights,  ///< GEMM operands made from the weights once per optimizer step
  gradients,
  optimizer_state,
  saved_activations,  ///< tensors that forward stores for backward
  workspace,          ///< temporaries within one operation or layer
  scaling_state,      ///< amax, histories, scales, statistics
  batch,              ///< tokens and targets of a micro-batch
  communication,      ///< bytes sent to other ranks and received from them
  state_copy,  ///< copy of the state while a checkpoint is written, if the device is the host
  // In memory of the host:
  offloaded,              ///< optimizer state and master weights
  offloaded_activations,  ///< saved activations
};

constexpr size_t kMemoryCategories = 13;

/// Whether memory of the category is the host's, and not the device's.
constexpr bool is_on_host(MemoryCategory category) {
  return category >= MemoryCategory::offloaded;
}

/// Returns the category's name in reports: "optimizer state".
std::string_view name_of(MemoryCategory category);

/// Counts the bytes in use by category, and their peak.
class MemoryLedger {
 public:
  void add(MemoryCategory category, size_t bytes);
  void remove(MemoryCategory category, size_t bytes);

  size_t current(MemoryCategory category) const { return current_[index(category)]; }
  /// Returns the bytes on the device, and those in memory of the host.
  size_t total() const { return total_; }
  size_t on_host() const {
    return current(MemoryCategory::offloaded) + current(MemoryCategory::offloaded_activations);
  }
  size_t peak() const { return peak_; }
  /// Returns how many allocations were ever made. The steady step makes none.
  uint64_t allocations() const { return allocations_; }

 private:
  static size_t index(MemoryCategory category) { return static_cast<size_t>(category); }

  std::array<size_t, kMemoryCategories> current_ = {};
  size_t total_ = 0;
  size_t peak_ = 0;
  uint64_t allocations_ = 0;
};

}  // namespace fp8train
