#pragma once
// Values of a tensor in the type in which a file stores them.

#include <cstddef>
#include <string>
#include <vector>

#include "numeric/dtype.h"

namespace fp8train {

/// Returns the values in `dtype` (fp32, bf16 or fp16), rounded to nearest, ties to even. Throws
/// CheckpointError, which names the tensor and the element, for a value that fp16 cannot hold.
std::vector<std::byte> encoded(const std::vector<float>& values, DType dtype,
                               const std::string& name);

/// Returns the values as Q8_0 of ggml (ggml-org/ggml: src/ggml-quants.c, quantize_row_q8_0_ref):
/// for each 32 values the fp16 scale d = amax / 127, then their codes, x / d rounded to the
/// nearest, ties away from zero; 0 where fp16 rounds the scale to 0. Throws CheckpointError for a
/// scale that fp16 cannot hold, InternalError unless there are whole blocks of 32.
std::vector<std::byte> encoded_q8_0(const std::vector<float>& values, const std::string& name);

}  // namespace fp8train
