#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "ops/cast/block_formats.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/gemm/gemm.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

constexpr size_t kLeastRepetitions = 3;
constexpr int kSubmissions = 10;

BenchCodes::Orientation make_orientation(Device& device, const TensorFormat& format,
                                         const Shape& shape, ScaleLayout layout) {
  BenchCodes::Orientation one;
  one.codes = Tensor(device, format.dtype, shape, MemoryCategory::workspace);
  if (format.block != per::tensor) {
    const Shape scales = {ops::scale_grid(format.block, shape[0], shape[1], layout).count};
    one.scales = Tensor(device, dtype_of(format.scale_type), scales, MemoryCategory::workspace);
    fill_zero(device, one.scales);  // cuBLASLt wants the padding to be
    if (format.block == per::row) {
      one.cast_scales = Tensor(device, DType::f32, scales, MemoryCategory::workspace);
    }
  }
  return one;
}

}  // namespace

Tensor random_matrix(Device& device, DType dtype, int64_t rows, int64_t columns) {
  Tensor result(device, dtype, {rows, columns}, MemoryCategory::workspace);
  fill_uniform(device, result.view());
  return result;
}

TensorFormat codes_format(ScaleBlock block, DType dtype, ScalePolicy policy) {
  TensorFormat format = plain(dtype);
  format.block = block;
  format.policy = policy;
  if (block != per::tensor) {
    format.scale_type = ops::find_block_format(block)->scales.front();
  }
  return format;
}

BenchCodes::BenchCodes(Device& device, const TensorFormat& how, int64_t rows, int64_t columns,
                       bool both)
    : format(how),
      layout(device.traits().fp8_gemm_by_library && how.block != per::tensor
                 ? ScaleLayout::cublaslt
                 : ScaleLayout::row_major),
      rowwise(make_orientation(device, how, {rows, columns}, layout)),
      state(device, DType::f32, {3}, MemoryCategory::workspace) {
  if (both) {
    columnwise = make_orientation(device, how, {columns, rows}, layout);
  }
  ops::fill(device.stream(), state, 1.0F);
}

QuantizedTensor BenchCodes::encoded() const {
  const auto with_scales = [&](const Orientation& one) {
    Encoded all(one.codes, format, one.scales, layout);
    all.cast_scales = one.cast_scales.view().as<float>();
    if (format.block == per::tensor) {
      all.cast_scales = state.view().as<float>();
      all.tensor_scale = all.cast_scales + 1;
    }
    return all;
  };
  return {with_scales(rowwise), columnwise.codes.empty() ? Encoded() : with_scales(columnwise)};
}

void BenchCodes::cast(const Stream& stream, const ConstView& x) const {
  float* const scale = state.view().as<float>();
  const bool is_delayed = format.policy == ScalePolicy::delayed;
  if (format.block == per::tensor && !is_delayed) {
    ops::amax(stream, x, scale + 2);
    ops::compute_current_scale(stream, scale + 2, format, scale, scale + 1);
  }
  ops::quantize(stream, x, encoded(), is_delayed ? scale + 2 : nullptr, nullptr);
}

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

double device_seconds(Device& device, const std::function<void()>& work, double min_seconds) {
  const int submissions = device.kind() == DeviceKind::cuda ? kSubmissions : 1;
  const auto several = [&] {
    for (int i = 0; i < submissions; ++i) {
      work();
    }
    device.synchronize();
  };
  return median_seconds(several, min_seconds) / submissions;
}

double GemmShape::flops() const {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

std::string GemmShape::text() const {
  return fmt::format("{}x{}x{}", m, n, k);
}

const char* gemm_engine(const Device& device, DType operand) {
  return device.kind() == DeviceKind::cuda ? "cuBLASLt" : ops::cpu_gemm_engine(operand);
}

void set_quick_weights(Device& device, ParameterStore& store) {
  int64_t largest = 0;
  for (const auto& parameter : store.all()) {
    largest = std::max(largest, parameter->shape.count());
  }
  constexpr float kRange = 0.035F;  // deviation 0.02
  std::vector<float> drawn = uniform_values(largest);
  for (float& value : drawn) {
    value *= kRange;
  }
  for (const auto& parameter : store.all()) {
    if (parameter->init == Init::normal) {
      set_value(device, *parameter, drawn.data());
    } else {
      const std::vector<float> values(static_cast<size_t>(parameter->shape.count()),
                                      parameter->init == Init::ones ? 1.0F : 0.0F);
      set_value(device, *parameter, values.data());
    }
  }
}

}  // namespace fp8train
