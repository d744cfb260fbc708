#pragma once
// Rates of products that were measured on a GPU (`fp8train bench products --json`), for a model of
// a step on such a GPU.

#include <optional>
#include <vector>

#include "device/meta/op_log.h"

namespace fp8train {

/// Where the rate of a product comes from.
enum class RateSource : uint8_t {
  assumed,  ///< the shares of gpu_kinds.cpp
  kind,     ///< the mean of measured products of its kind
  shape,    ///< the measurement of its shape and types
};

/// FLOPs per second and their source.
struct MeasuredRate {
  double flops_per_second = 0;
  RateSource source = RateSource::assumed;
};

class MeasuredProducts {
 public:
  /// Adds the rate of a product.
  void add(const OpProduct& product, double flops_per_second);

  /// Returns the measured rate of a product with the extents, operands and accumulation of
  /// `product`, and if possible with the type of its result; else the mean of its kind: all FLOPs
  /// divided by all seconds of the products with 16-bit operands, or of those with the same kind of
  /// scales and the same accumulation. Returns nothing if no product of its kind was measured.
  std::optional<MeasuredRate> rate(const OpProduct& product) const;

 private:
  struct Entry {
    OpProduct product;
    double flops_per_second;
  };
  std::vector<Entry> entries_;
};

}  // namespace fp8train
