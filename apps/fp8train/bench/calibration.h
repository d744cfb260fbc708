#pragma once
// Rates of products that `fp8train bench products --json` measured on a GPU.

#include <string>

#include "device/gpu_kinds.h"
#include "engine/measured_products.h"

namespace fp8train {

/// Reads the rates of such a file; products that it calls refused or dequantized are left out.
/// Throws ConfigError if the file cannot be read, is of another GPU than `gpu`, or has no rates.
MeasuredProducts read_calibration(const std::string& path, const GpuKind& gpu);

}  // namespace fp8train
