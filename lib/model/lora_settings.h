#pragma once
// A user's settings of adapters (model/lora.h).

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor_format.h"

namespace fp8train {

/// Which layers have adapters, and their size. With a rank of 0 there are none.
struct LoraSettings {
  int64_t rank = 0;
  double alpha = 0;         ///< 0: the rank
  bool use_rslora = false;  ///< scale by alpha / sqrt(rank) (Kalajdzievski, arXiv 2312.03732)
  /// Patterns of names of modules, or of layers here; empty: the projections of queries and values.
  std::vector<std::string> targets;
  /// How the frozen weights of linear layers in blocks are stored: fp32, bf16, or codes with scales
  /// of rows or of blocks of 128x128.
  TensorFormat base;

  bool is_on() const { return rank > 0; }
  bool has_codes() const { return base.is_scaled(); }
  double scale() const {
    const auto size = static_cast<double>(rank);
    return (alpha == 0 ? size : alpha) / (use_rslora ? std::sqrt(size) : size);
  }
  bool operator==(const LoraSettings&) const = default;
};

}  // namespace fp8train
