#pragma once
// Questions to the rule of a slot's scale. For source files of this folder only.

#include "tensor/tensor_format.h"

namespace fp8train {

/// Whether scales follow from blocks. Such slots have an amax only for the guard, into which every
/// cast of a micro-batch is combined.
inline bool by_blocks(const TensorFormat& format) {
  return format.block != per::tensor;
}

inline bool same_rule(const TensorFormat& a, const TensorFormat& b) {
  return a.policy == b.policy && by_blocks(a) == by_blocks(b) &&
         (a.policy != ScalePolicy::delayed ||
          (a.delayed == b.delayed && a.scale_type == b.scale_type));
}

inline bool is_delayed(const TensorFormat& format) {
  return format.policy == ScalePolicy::delayed;
}

inline bool is_of_rank(const TensorFormat& format) {
  return is_delayed(format) && format.delayed.reduction == AmaxReduction::none;
}

}  // namespace fp8train
