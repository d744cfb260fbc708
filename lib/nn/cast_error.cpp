#include "nn/cast_error.h"

#include <algorithm>

#include "device/device_questions.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/optimizer/optimizer.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 22;
constexpr int64_t kTallestBlock = 128;

/// `values` = x after a cast with the slot's one scale, or with one for each block along its rows.
void round_as(const StepContext& context, ConstView x, const ScalingSlot& slot, View values) {
  const TensorFormat& format = slot.format;
  const bool of_tensor = format.block == per::tensor;
  const auto scalar = [&] { return allocate(*context.scratch, DType::f32, {1}).as<float>(); };
  Encoded codes(allocate(*context.scratch, format.dtype, x.shape), format);
  if (of_tensor || (format.is_two_level() && !format.row_scaled)) {
    codes.cast_scales = of_tensor ? slot.scale : scalar();
    codes.tensor_scale = scalar();
  }
  if (!of_tensor) {
    const int64_t scales =
        ops::scale_grid(format.block, x.shape.rows(), x.shape.back(), ScaleLayout::row_major).count;
    codes.format.rounding = Rounding::nearest_even;
    codes.scales = allocate(*context.scratch, dtype_of(format.scale_type), {scales});
    if (format.row_scaled) {
      const View of_rows = allocate(*context.scratch, DType::f32, {x.shape.rows()});
      codes.row_scales = of_rows.as<float>();
    }
    if (format.block == per::row) {
      codes.cast_scales = allocate(*context.scratch, DType::f32, {scales}).as<float>();
    }
  }
  ops::quantize(context.stream, x, {codes}, nullptr, nullptr);
  ops::dequantize(context.stream, codes, values);
}

/// rounded: x after the cast; becomes the error.
void add_energies_of(const StepContext& context, ConstView x, View rounded,
                     const ScalingSlot& slot) {
  const View minus_one = allocate(*context.scratch, DType::f32, {1});
  ops::fill(context.stream, minus_one, -1.0F);
  ops::scale_by(context.stream, rounded, minus_one.as<float>());
  ops::add(context.stream, x, rounded, rounded);
  const View partial =
      allocate(*context.scratch, DType::f64, {ops::squares_partial_sums(x.count())});
  ops::sum_of_squares(context.stream, x, &slot.sample->signal, partial);
  ops::sum_of_squares(context.stream, rounded, &slot.sample->noise, partial);
}

void add_energies(const StepContext& context, ConstView x, const ScalingSlot& slot) {
  ArenaScope scope(*context.scratch);
  const View error = allocate(*context.scratch, DType::f32, x.shape);
  round_as(context, x, slot, error);
  add_energies_of(context, x, error, slot);
}

}  // namespace

void sample_amax(const StepContext& context, ConstView x, const ScalingSlot& slot) {
  const View energies = {&slot.sample->signal, DType::f32, {4}};  // two doubles
  ops::fill(context.stream, energies, 0.0F);
  ops::amax(context.stream, x, &slot.sample->amax);
}

void sample_rounded(const StepContext& context, ConstView x, View rounded,
                    const ScalingSlot& slot) {
  ArenaScope scope(*context.scratch);
  sample_amax(context, x, slot);
  add_energies_of(context, x, rounded, slot);
}

void sample_cast(const StepContext& context, ConstView x, const ScalingSlot& slot) {
  sample_amax(context, x, slot);
  const int64_t rows = x.shape.rows();
  const int64_t blockwise = kElementsAtOnce / (x.shape.back() * kTallestBlock);
  const int64_t at_once = std::max<int64_t>(1, blockwise) * kTallestBlock;
  for (int64_t row = 0; row < rows; row += at_once) {
    add_energies(context, rows_of(x, row, std::min(at_once, rows - row)), slot);
    if (counts_only(*context.device)) {
      return;  // the first rows take as much memory as others, and this work is not counted
    }
  }
}

}  // namespace fp8train
