#pragma once
// Warp instructions of the CUDA backend's kernels, as compiled for compute capability 9.0:
// lib/ops/support/kernel_table.json, which scripts/kernel_resources.py writes.

#include <string_view>

namespace fp8train::ops::meta {

/// For each element, of a kernel by OpWork::kernel; 0: the table does not say.
double instructions_per_element(std::string_view kernel);

}  // namespace fp8train::ops::meta
