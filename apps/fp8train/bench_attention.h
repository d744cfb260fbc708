#pragma once
// fp8train bench attention: causal attention alone, forward and backward.

#include "device/device.h"
#include "ops/attention/attention.h"

namespace fp8train {

struct AttentionRates {
  double forward_seconds, backward_seconds;
  double forward_flops,
      backward_flops;  ///< per second; of the causal half, recomputation uncounted
};

/// Medians on random data. The query length is the key length.
AttentionRates attention_rates(Device& device, const ops::AttentionShape& shape, DType dtype,
                               double min_seconds);

}  // namespace fp8train
