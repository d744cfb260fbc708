#pragma once
// fp8train bench cast: how fast values become codes, against the memory bandwidth that a copy
// reaches in the same run on buffers of the same size.

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"
#include "numeric/dtype.h"

namespace fp8train {

struct CastRate {
  DType from, to;
  std::string scales;      ///< "delayed", "current", "row", "1x128", ...
  bool both_orientations;  ///< also the transpose, whose blocks lie along the columns
  double elements_per_second;
  double bytes_per_second;  ///< x once, codes and scales; a second read of x does not count
};

struct CastRates {
  double copy_bytes_per_second;  ///< read and written; the better of fp32 and bf16
  std::vector<CastRate> casts;
};

/// Casts of a random matrix [rows, columns], each measured for `seconds`.
CastRates cast_rates(Device& device, int64_t rows, int64_t columns, double seconds);

}  // namespace fp8train
