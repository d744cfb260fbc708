#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/philox.h"
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

}  // namespace

Tensor random_matrix(Device& device, DType dtype, int64_t rows, int64_t columns) {
  Tensor result(device, dtype, {rows, columns}, MemoryCategory::workspace);
  if (!is_fp8(dtype)) {
    fill_uniform(device, result.view());
    return result;
  }
  const Tensor source(device, DType::f32, {rows, columns}, MemoryCategory::workspace);
  fill_uniform(device, source.view());
  const Tensor one(device, DType::f32, {2}, MemoryCategory::workspace);
  ops::fill(device.stream(), one, 1.0F);
  Encoded codes(result, plain(dtype));
  codes.cast_scales = one.view().as<float>();
  codes.tensor_scale = codes.cast_scales + 1;
  ops::quantize(device.stream(), source, {codes}, nullptr, nullptr);
  return result;
}

TensorFormat blockwise_role_format(ScaleBlock block) {
  TensorFormat format = plain(DType::e4m3);
  format.block = block;
  format.policy = ScalePolicy::current;
  format.scale_type = ops::find_block_format(block)->scales.front();
  return format;
}

BlockwiseCodes::BlockwiseCodes(Device& device, const TensorFormat& how, int64_t rows,
                               int64_t columns)
    : format(how),
      layout(device.traits().fp8_gemm_by_library ? ScaleLayout::cublaslt : ScaleLayout::row_major),
      codes(device, how.dtype, {rows, columns}, MemoryCategory::workspace) {
  const Shape shape = {ops::scale_grid(format.block, rows, columns, layout).count};
  scales = Tensor(device, dtype_of(format.scale_type), shape, MemoryCategory::workspace);
  fill_zero(device, scales);  // cuBLASLt wants the padding to be
  if (format.block == per::row) {
    cast_scales = Tensor(device, DType::f32, shape, MemoryCategory::workspace);
  }
}

void BlockwiseCodes::cast(const Stream& stream, const ConstView& x) const {
  ops::quantize(stream, x, {encoded()}, nullptr, nullptr);
}

Encoded BlockwiseCodes::encoded() const {
  Encoded all(codes, format, scales, layout);
  all.cast_scales = cast_scales.view().as<float>();
  return all;
}

TensorCodes::TensorCodes(Device& device, DType dtype, int64_t rows, int64_t columns,
                         bool transposed)
    : codes(device, dtype, {rows, columns}, MemoryCategory::workspace),
      state(device, DType::f32, {3}, MemoryCategory::workspace) {
  if (transposed) {
    columnwise_codes = Tensor(device, dtype, {columns, rows}, MemoryCategory::workspace);
  }
  ops::fill(device.stream(), state, 1.0F);
}

void TensorCodes::cast(const Stream& stream, const ConstView& x, bool current) const {
  float* scale = state.view().as<float>();
  const QuantizedTensor out = tensor();
  if (current) {
    ops::amax(stream, x, scale + 2);
    ops::compute_current_scale(stream, scale + 2, out.format(), scale, scale + 1);
  }
  ops::quantize(stream, x, out, current ? nullptr : scale + 2, nullptr);
}

QuantizedTensor TensorCodes::tensor() const {
  QuantizedTensor all;
  all.rowwise.codes = codes;
  if (!columnwise_codes.empty()) {
    all.columnwise.codes = columnwise_codes;
  }
  all.set(&Encoded::format, plain(all.rowwise.codes.dtype));
  all.set(&Encoded::cast_scales, state.view().as<float>());
  all.set(&Encoded::tensor_scale, state.view().as<float>() + 1);
  return all;
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

Batch random_batch(const EngineSettings& settings, int rank) {
  Batch batch;
  batch.rows = settings.step.micro_batch_size;
  batch.columns = settings.step.seq_length;
  const auto vocabulary = static_cast<uint32_t>(settings.model.vocab_size);
  for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
    const PhiloxBlock bits = philox(2, static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
    batch.tokens.push_back(static_cast<int32_t>(bits.word[0] % vocabulary));
    batch.targets.push_back(static_cast<int32_t>(bits.word[1] % vocabulary));
  }
  return batch;
}

}  // namespace fp8train
