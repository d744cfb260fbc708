#pragma once
// The version of what probe_gemms() tries.

namespace fp8train::ops {

/// To be raised with every change of what probe_gemms() tries or accepts: results that earlier
/// versions stored are then not read (train/probed_products.h).
constexpr int kGemmProbeVersion = 1;

}  // namespace fp8train::ops
