#include "tensor/stored_tensor.h"

namespace fp8train {

bool is_stored_format(const TensorFormat& format) {
  const DType dtype = format.dtype;
  if (!format.is_scaled()) {
    const bool exact = dtype == DType::f32 && format.rounding == Rounding::nearest_even;
    return !format.expanded && (exact || dtype == DType::bf16);
  }
  const bool grouped =
      format.granularity == Granularity::group && format.group_size == kStoredGroup;
  if (format.expanded && (!grouped || dtype != DType::e4m3)) {
    return false;
  }
  if (format.amax_epsilon > 0 || (format.expanded && format.scale_type != ScaleType::f32)) {
    return false;
  }
  return (grouped || format.granularity == Granularity::tensor) &&
         format.policy == ScalePolicy::current && format.scale_type != ScaleType::e8m0 &&
         (is_fp8(dtype) || dtype == DType::f16 || dtype == DType::bf16);
}

int64_t stored_scales(const TensorFormat& format, int64_t count) {
  if (!format.is_scaled()) {
    return 0;
  }
  if (format.granularity == Granularity::tensor) {
    return 2;
  }
  const int64_t groups = (count + kStoredGroup - 1) / kStoredGroup;
  return format.expanded ? 3 * groups : groups;
}

}  // namespace fp8train
