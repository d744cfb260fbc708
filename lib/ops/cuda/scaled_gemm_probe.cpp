// One small product in each scale mode, of known result, before memory is planned. Codes are small
// integers and scales are multiples of a half, so that the result is exact in fp32 whatever the
// order of sums; every extent has a piece of a granule left over. cuBLASLt's heuristic answers for
// modes that it then refuses, and releases have ignored scales.

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "ops/cuda/cublaslt_api.h"
#include "ops/cuda/cuda_table.h"
#include "ops/cuda/gemm_plans.h"
#include "ops/granules.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int64_t kM = 256;
constexpr int64_t kN = 144;
constexpr int64_t kK = 288;

/// A mode, and whether the device has it.
struct Mode {
  const char* name;
  Granularity a, b;
  bool DeviceTraits::*has;
};
constexpr Mode kModes[] = {
    {"tensor", Granularity::tensor, Granularity::tensor, &DeviceTraits::tensor_scaled_gemm},
    {"row", Granularity::row, Granularity::row, &DeviceTraits::row_scaled_gemm},
    {"1x128 x 1x128", Granularity::block_1x128, Granularity::block_1x128,
     &DeviceTraits::block_scaled_gemm},
    {"1x128 x 128x128", Granularity::block_1x128, Granularity::block_128x128,
     &DeviceTraits::block_scaled_gemm},
    {"128x128 x 1x128", Granularity::block_128x128, Granularity::block_1x128,
     &DeviceTraits::block_scaled_gemm},
    {"1x32", Granularity::block_1x32, Granularity::block_1x32, &DeviceTraits::mx_scaled_gemm}};

/// What the GEMMs of a layer ask for in one mode: gradients may come in E5M2, and fprop may keep
/// partial sums in the short accumulator, which blocks of 128 have no use for.
struct Variant {
  DType a;
  bool fast_accumulate;
};
constexpr Variant kVariants[] = {{DType::e4m3, false}, {DType::e5m2, false}, {DType::e4m3, true}};

bool suits(const Mode& mode, const Variant& variant) {
  const bool blocks = mode.has == &DeviceTraits::block_scaled_gemm;
  return !variant.fast_accumulate || !blocks;
}

/// An operand on the host and its copy on the device.
struct Operand {
  Operand(Device& device, Granularity granularity, DType dtype, int64_t rows, int64_t seed);

  DType dtype;
  std::vector<uint8_t> codes;  ///< [rows, kK]
  std::vector<float> values;   ///< what they stand for
  std::vector<uint8_t> scale_bytes;
  Buffer device_codes, device_scales;
};

float scale_at(Granularity granularity, int64_t row, int64_t column, int64_t seed) {
  const int64_t kind = (3 * row + 5 * column + seed) % 4;
  return granularity == Granularity::block_1x32 ? power_of_two(static_cast<int>(kind) - 1)
                                                : 0.5F + 0.5F * static_cast<float>(kind);
}

/// Scales as cuBLASLt reads them, zeros between; one for Granularity::tensor.
std::vector<uint8_t> scales_of(Granularity granularity, int64_t rows, int64_t seed) {
  const bool e8m0_scales = granularity == Granularity::block_1x32;
  if (granularity == Granularity::tensor) {
    const float scale = scale_at(granularity, 0, 0, seed);
    std::vector<uint8_t> bytes(sizeof(scale));
    std::memcpy(bytes.data(), &scale, sizeof(scale));
    return bytes;
  }
  const GranuleGrid grid = granule_grid(granularity, rows, kK, ScaleLayout::cublaslt);
  const size_t size = e8m0_scales ? 1 : sizeof(float);
  std::vector<uint8_t> bytes(static_cast<size_t>(grid.count) * size);
  for (int64_t row = 0; row < grid.rows; ++row) {
    for (int64_t column = 0; column < grid.columns; ++column) {
      const float scale = scale_at(granularity, row, column, seed);
      const e8m0 exponent = encode_e8m0_round_up(scale);
      std::memcpy(bytes.data() + static_cast<size_t>(grid.offset(row, column)) * size,
                  e8m0_scales ? static_cast<const void*>(&exponent) : &scale, size);
    }
  }
  return bytes;
}

Operand::Operand(Device& device, Granularity granularity, DType code_type, int64_t rows,
                 int64_t seed)
    : dtype(code_type),
      scale_bytes(scales_of(granularity, rows, seed)),
      device_codes(device, static_cast<size_t>(rows * kK), MemoryCategory::workspace),
      device_scales(device, scale_bytes.size(), MemoryCategory::workspace) {
  const bool whole = granularity == Granularity::tensor;
  const GranuleGrid grid =
      granule_grid(whole ? Granularity::row : granularity, rows, kK, ScaleLayout::row_major);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < kK; ++k) {
      const float code = static_cast<float>((7 * row + 3 * k + row / 5 + seed) % 5 - 2);
      codes.push_back(dtype == DType::e4m3 ? encode<e4m3>(code).bits : encode<e5m2>(code).bits);
      values.push_back(code *
                       scale_at(granularity, whole ? 0 : row / grid.height, k / grid.width, seed));
    }
  }
  device.copy_from_host(device_codes.data(), codes.data(), codes.size());
  device.copy_from_host(device_scales.data(), scale_bytes.data(), scale_bytes.size());
}

/// The exact product plus `added`.
std::vector<float> expected_product(const Operand& a, const Operand& b, float added) {
  std::vector<float> product(static_cast<size_t>(kM * kN));
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      const float* left = a.values.data() + m * kK;
      const float* right = b.values.data() + n * kK;
      float sum = added;
      for (int64_t k = 0; k < kK; ++k) {
        sum += left[k] * right[k];
      }
      product[static_cast<size_t>(m * kN + n)] = sum;
    }
  }
  return product;
}

Product product_of(const Mode& mode, const Variant& variant, const Operand& a, const Operand& b,
                   View c, float beta) {
  const auto operand = [](const Operand& from, Granularity granularity, int64_t rows,
                          bool transposed) {
    return ProductOperand{{from.device_codes.data(), from.dtype, {rows, kK}},
                          transposed,
                          granularity,
                          from.device_scales.data()};
  };
  return {operand(a, mode.a, kM, false), operand(b, mode.b, kN, true), c, beta,
          variant.fast_accumulate};
}

/// fp32 added to a result of ones, as for weight gradients, and bf16, as for the others.
bool gives_expected_product(Device& device, const Mode& mode, const Variant& variant) {
  const Operand a(device, mode.a, variant.a, kM, 1);
  const Operand b(device, mode.b, DType::e4m3, kN, 2);
  const std::vector<float> expected = expected_product(a, b, 0.0F);
  const std::vector<float> ones(expected.size(), 1.0F);
  std::vector<float> got(expected.size());
  std::vector<bf16> rounded(expected.size());
  const Buffer c(device, expected.size() * sizeof(float), MemoryCategory::workspace);
  CudaContext& context = cuda_context(device.stream());
  device.copy_from_host(c.data(), ones.data(), ones.size() * sizeof(float));
  gemm_plans(context).run(context,
                          product_of(mode, variant, a, b, {c.data(), DType::f32, {kM, kN}}, 1.0F));
  device.copy_to_host(got.data(), c.data(), got.size() * sizeof(float));
  gemm_plans(context).run(context,
                          product_of(mode, variant, a, b, {c.data(), DType::bf16, {kM, kN}}, 0.0F));
  device.copy_to_host(rounded.data(), c.data(), rounded.size() * sizeof(bf16));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i] != expected[i] + 1.0F || rounded[i].bits != encode<bf16>(expected[i]).bits) {
      return false;
    }
  }
  return true;
}

/// Empty, or what is wrong.
std::string try_mode(Device& device, const Mode& mode) {
  try {
    for (const Variant& variant : kVariants) {
      if (suits(mode, variant) && !gives_expected_product(device, mode, variant)) {
        return "a wrong product";
      }
    }
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace

DeviceTraits probed_traits(Device& device) {
  constexpr int kFp8Capability = 89;
  DeviceTraits traits = device.traits();
  const CudaContext& context = cuda_context(device.stream());
  if (context.capability < kFp8Capability) {
    return traits;
  }
  gemm_plans(cuda_context(device.stream()));  // a missing library is an error of its own
  for (const Mode& mode : kModes) {
    if (!(traits.*mode.has)) {
      continue;
    }
    const std::string wrong = try_mode(device, mode);
    if (wrong.empty()) {
      continue;
    }
    const bool tensor = mode.has == &DeviceTraits::tensor_scaled_gemm;
    log_warning(fmt::format("cuBLASLt {} on this GPU, FP8 products with {} scales: {}; {}",
                            cublaslt().get_version(), mode.name, wrong,
                            tensor ? "rows of the chart that need them are refused"
                                   : "their operands are dequantized instead"));
    traits.*mode.has = false;
  }
  return traits;
}

}  // namespace fp8train::ops::cuda
