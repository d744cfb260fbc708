#include "bench.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/philox.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/granules.h"
#include "ops/quantize.h"
#include "ops/scaled_gemm.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

constexpr size_t kLeastRepetitions = 3;

}  // namespace

Tensor random_matrix(Device& device, DType dtype, int64_t rows, int64_t columns) {
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); i += 4) {
    const PhiloxBlock bits = philox(1, 0, i / 4);
    for (size_t j = i; j < std::min(i + 4, values.size()); ++j) {
      values[j] = 2.0F * uniform_from_bits(bits.word[j - i]) - 1.0F;
    }
  }
  Tensor source(device, DType::f32, {rows, columns}, MemoryCategory::workspace);
  copy_from_host(device, source, values.data());
  if (dtype == DType::f32) {
    return source;
  }
  Tensor result(device, dtype, {rows, columns}, MemoryCategory::workspace);
  if (!is_fp8(dtype)) {
    ops::cast(device.stream(), source, result);
    return result;
  }
  const Tensor one(device, DType::f32, {2}, MemoryCategory::workspace);
  ops::fill(device.stream(), one, 1.0F);
  ops::quantize(device.stream(), source,
                {.codes = result,
                 .codes_transposed = {},
                 .scale = one.view().as<float>(),
                 .scale_inv = one.view().as<float>() + 1,
                 .format = plain(dtype)},
                nullptr, nullptr);
  return result;
}

namespace {

/// A random matrix [rows, columns] cast on the device, with memory of its own.
struct ScaledMatrix {
  ScaledMatrix(Device& device, const TensorFormat& wanted, int64_t rows, int64_t columns)
      : format(wanted),
        layout(device.kind() == DeviceKind::cuda ? ScaleLayout::cublaslt : ScaleLayout::row_major),
        codes(device, format.dtype, {rows, columns}, MemoryCategory::workspace) {
    const Shape scales = {ops::granule_grid(format.granularity, rows, columns, layout).count};
    const bool e8m0_scales = format.scale_type == ScaleType::e8m0;
    scale_inv =
        Tensor(device, e8m0_scales ? DType::e8m0 : DType::f32, scales, MemoryCategory::workspace);
    fill_zero(device, scale_inv);
    const Tensor scale(device, DType::f32, scales, MemoryCategory::workspace);
    const Tensor source = random_matrix(device, DType::f32, rows, columns);
    GranuleQuantizedView out;
    out.rowwise = {codes, scale_inv, scale.view().as<float>()};
    out.format = format;
    out.layout = layout;
    ops::quantize_granules(device.stream(), source, out, nullptr, nullptr);
    device.synchronize();
  }
  ops::ScaledGemmOperand operand() const { return {{codes, scale_inv, nullptr}, format, layout}; }

  TensorFormat format;
  ScaleLayout layout;
  Tensor codes, scale_inv;
};

}  // namespace

double median_seconds(const std::function<void()>& work, double min_seconds) {
  work();
  std::vector<double> seconds;
  const Stopwatch total;
  while (seconds.size() < kLeastRepetitions || total.seconds() < min_seconds) {
    const Stopwatch watch;
    work();
    seconds.push_back(watch.seconds());
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

double gemm_rate(Device& device, DType dtype, int64_t m, int64_t n, int64_t k, double min_seconds) {
  const Tensor a = random_matrix(device, dtype, m, k);
  const Tensor b = random_matrix(device, dtype, n, k);
  const Tensor c(device, DType::f32, {m, n}, MemoryCategory::workspace);
  const double seconds = median_seconds(
      [&] {
        ops::gemm(device.stream(), {.a = {a.view()}, .b = {b.view(), true}, .c = c});
        device.synchronize();
      },
      min_seconds);
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / seconds;
}

ScaledRate scaled_gemm_rate(Device& device, const TensorFormat& a, const TensorFormat& b, int64_t m,
                            int64_t n, int64_t k, double min_seconds) {
  const ScaledMatrix left(device, a, m, k);
  const ScaledMatrix right(device, b, n, k);
  const Tensor c(device, DType::f32, {m, n}, MemoryCategory::workspace);
  ops::ScaledGemm call = {.a = left.operand(), .b = right.operand(), .c = c};
  const size_t bytes = ops::scaled_gemm_scratch_bytes(device.traits(), call);
  const Buffer scratch(device, bytes, MemoryCategory::workspace);
  call.scratch = {scratch.data(), DType::u8, {static_cast<int64_t>(bytes)}};
  const double seconds = median_seconds(
      [&] {
        ops::scaled_gemm(device.stream(), call);
        device.synchronize();
      },
      min_seconds);
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return {flops / seconds, std::string(ops::scaled_gemm_support(device.traits(), call).reason)};
}

double gemm_ceiling(Device& device, DType dtype) {
  double best = 0;
  const bool gpu = device.kind() == DeviceKind::cuda;
  for (const int64_t size :
       gpu ? std::vector<int64_t>{4096, 8192} : std::vector<int64_t>{512, 1024, 2048}) {
    best = std::max(best, gemm_rate(device, dtype, size, size, size, 0.5));
  }
  return best;
}

}  // namespace fp8train
