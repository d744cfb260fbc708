#pragma once
// Warp instructions of the CUDA backend's kernels, as compiled for compute capability 9.0:
// lib/ops/support/kernel_table.json, which scripts/kernel_resources.py writes.

#include <string_view>

namespace fp8train::ops::meta {

/// Returns the instructions for each element of a kernel (OpWork::kernel), or 0 if the table lacks
/// it.
double instructions_per_element(std::string_view kernel);

}  // namespace fp8train::ops::meta
