#include "nn/saved_input.h"

#include "ops/cast/scale_blocks.h"

namespace fp8train {

SavedInput SavedInput::keep(const StepContext& context, ConstView x, const SavedFormat& how) {
  SavedInput saved;
  saved.x_ = x;
  if (!how.has_codes() || (!context.training && !how.in_forward(context))) {
    return saved;
  }
  Arena& arena = context.training ? *context.saved : *context.scratch;
  if (how.format.block.is_group()) {
    const int64_t scales = stored_scales(how.format, x.count());
    saved.codes_ = {allocate(arena, how.format.dtype, x.shape), how.format,
                    allocate(arena, scales_type(how.format), {scales})};
    ops::store(context.stream, {.x = x, .to = saved.codes_});
  } else {
    const Shape matrix = {x.shape.rows(), x.shape.back()};
    const ops::ScaleGrid grid =
        ops::scale_grid(how.format.block, matrix.rows(), matrix.back(), ScaleLayout::row_major);
    saved.codes_ = {allocate(arena, how.format.dtype, matrix), how.format,
                    allocate(arena, DType::f32, {grid.count})};
    ops::quantize(context.stream, x, {saved.codes_}, nullptr, nullptr);
  }
  saved.x_.data = nullptr;
  return saved;
}

void SavedInput::decode(const StepContext& context, View y) const {
  const bool is_flat = codes_.format.block.is_group();
  (is_flat ? ops::read_stored : ops::dequantize)(context.stream, codes_, y);
}

ConstView SavedInput::read(const StepContext& context) const {
  if (!has_codes()) {
    return x_;
  }
  const View x = allocate(*context.scratch, x_.dtype, x_.shape);
  decode(context, x);
  return x;
}

}  // namespace fp8train
