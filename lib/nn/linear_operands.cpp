#include "nn/linear_operands.h"

#include "base/error.h"
#include "nn/cast_error.h"
#include "ops/cast/blockwise_parts.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/gemm/gemm_support.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

/// Streams of random bits of slots come after those of parameters (RoundingStream).
constexpr uint64_t kRandomOfSlots = uint64_t{1} << 32;

/// The operands of one GEMM: both plain, or formats that have a product; along columns one of them
/// may be plain, along rows this one.
void check_pair(const TensorFormat& a, const TensorFormat& b, bool along_columns) {
  if (a.is_scaled() != b.is_scaled()) {
    check(along_columns || !a.is_scaled(), "a GEMM has one scaled and one plain operand");
    return;
  }
  check(ops::gemm_support(DeviceTraits{}, {a, b}).native,
        "the formats of a GEMM's operands do not go together");
}

Quantized allocate_blockwise(const LinearOperands::Memory& memory, const TensorFormat& format,
                             ScaleLayout layout, const Shape& shape) {
  const int64_t scales = ops::scale_grid(format.block, shape.rows(), shape.back(), layout).count;
  Quantized made = {.codes = memory(format.dtype, {shape.rows(), shape.back()}),
                    .scale_inv = memory(dtype_of(format.scale_type), {scales})};
  if (format.row_scaled) {
    made.row_scale_inv = memory(DType::f32, {shape.rows()}).as<float>();
  }
  return made;
}

/// Zeros where no scale is written.
void clear_padding(const StepContext& context, const TensorFormat& format, ScaleLayout layout,
                   const Quantized& view) {
  const Shape& shape = view.codes.shape;
  const ops::ScaleGrid grid = ops::scale_grid(format.block, shape.rows(), shape.back(), layout);
  if (grid.count != grid.rows * grid.columns) {
    ops::fill(context.stream, as_words(view.scale_inv), 0.0F);
  }
}

/// Prepares the rest of a cast's output: the scales themselves for rows, and the padding.
void prepare_blockwise(const StepContext& context, const TensorFormat& format, ScaleLayout layout,
                       Quantized& view) {
  if (view.codes.empty()) {
    return;
  }
  if (format.block == per::row) {
    view.scale = allocate(*context.scratch, DType::f32, view.scale_inv.shape).as<float>();
  }
  clear_padding(context, format, layout, view);
}

}  // namespace

LinearOperands::LinearOperands(ScalingState& scaling, const std::string& layer,
                               const Role& along_rows, const Role& along_columns)
    : with_blockwise_(blockwise(along_columns.other)),
      with_plain_(along_columns.format.is_scaled() && !along_columns.other.is_scaled()) {
  check(!with_plain_ || along_columns.format == along_rows.format,
        "with a plain operand the codes of the other GEMM are read");
  for (const Role* role : {&along_rows, &along_columns}) {
    check_pair(role->format, role->other, role == &along_columns);
    check(!blockwise(role->format) || role->format.policy == ScalePolicy::current,
          "a scale for each block follows from the block itself");
  }
  if (along_rows.format.is_scaled()) {
    rows_ = scaling.add(layer, along_rows.name, along_rows.format, along_rows.of_pass);
  }
  if (along_columns.format.is_scaled()) {
    // Transformed values are others in each orientation, and so is the amax of the tensor.
    const bool same = rows_ != nullptr && along_rows.format == along_columns.format &&
                      !along_rows.format.hadamard;
    columns_ =
        same ? rows_
             : scaling.add(layer, along_columns.name, along_columns.format, along_columns.of_pass);
  }
}

/// Whether codes for the GEMM along columns are the transposed ones.
bool LinearOperands::columnwise(const DeviceTraits& traits) const {
  return !with_plain_ && (traits.fp8_gemm_along_k_only || with_blockwise_);
}

LinearOperands::Wanted LinearOperands::of_slot(const ScalingSlot* slot, Wanted wanted) const {
  return {wanted.along_rows && slot != nullptr && slot == rows_,
          wanted.along_columns && slot != nullptr && slot == columns_};
}

const ScalingSlot* LinearOperands::only_slot() const {
  if (!codes_suffice(rows_) || !is_byte_code(rows_->format.dtype)) {
    return nullptr;
  }
  const ScaleBlock block = rows_->format.block;
  const bool both_ways =
      block == per::tensor || (block.is_square() && !rows_->format.is_two_level());
  return both_ways || with_plain_ ? rows_ : nullptr;
}

const ScalingSlot* LinearOperands::slot_for_producer(Wanted wanted) const {
  const auto castable = [](const ScalingSlot* slot) {
    return slot != nullptr && slot->format.block == per::tensor;
  };
  if (wanted.along_rows && castable(rows_)) {
    return rows_;
  }
  return wanted.along_columns && castable(columns_) ? columns_ : nullptr;
}

LinearOperands::Cast LinearOperands::allocate_cast(const DeviceTraits& traits,
                                                   const ScalingSlot* slot, const Shape& shape,
                                                   Wanted wanted,
                                                   const Destinations& destinations) const {
  const Wanted here = of_slot(slot, wanted);
  Cast cast = {.slot = slot, .codes = {}};
  const TensorFormat& format = slot->format;
  const Shape transposed = {shape.back(), shape.rows()};
  QuantizedTensor& codes = cast.codes;
  codes.format = format;
  if (blockwise(format)) {
    codes.layout = block_layout(traits);
    if (format.is_two_level() && !format.row_scaled) {
      codes.tensor_scale = slot->scale;
      codes.tensor_scale_inv = slot->scale_inv;
    }
    if (here.along_rows || with_plain_) {
      const bool stored = with_plain_ && here.along_columns;
      codes.rowwise =
          allocate_blockwise(stored ? destinations.along_columns : destinations.along_rows, format,
                             codes.layout, shape);
    }
    if (here.along_columns && !with_plain_) {
      codes.columnwise =
          allocate_blockwise(destinations.along_columns, format, codes.layout, transposed);
    }
    return cast;
  }
  const bool with_columnwise = here.along_columns && columnwise(traits);
  codes.tensor_scale = slot->scale;
  codes.tensor_scale_inv = slot->scale_inv;
  if (here.along_rows || !with_columnwise) {
    const bool both = here.along_columns && !with_columnwise;
    codes.rowwise.codes =
        (both ? destinations.along_columns : destinations.along_rows)(format.dtype, shape);
  }
  if (with_columnwise) {
    codes.columnwise.codes = destinations.along_columns(format.dtype, transposed);
  }
  return cast;
}

void LinearOperands::quantize_tensor(const StepContext& context, ConstView x, const Cast& cast,
                                     bool amax_known) {
  const ScalingSlot& slot = *cast.slot;
  ops::QuantizeStatistics* statistics = context.collect_statistics ? slot.statistics : nullptr;
  if (blockwise(slot.format)) {
    ArenaScope scope(*context.scratch);
    QuantizedTensor out = cast.codes;
    prepare_blockwise(context, out.format, out.layout, out.rowwise);
    prepare_blockwise(context, out.format, out.layout, out.columnwise);
    // The amax is for ScalingState::update, which learns of infinities from it.
    ops::quantize(
        context.stream, x, out, context.training ? slot.amax : nullptr, statistics,
        {.seed = context.seed, .pass = context.pass, .tensor = kRandomOfSlots + slot.index});
    return;
  }
  if (!slot.scales_now) {
    ops::quantize(context.stream, x, cast.codes, context.training ? slot.amax : nullptr,
                  statistics);
    return;
  }
  if (!amax_known) {
    ops::amax(context.stream, x, slot.amax, amax_is_clear(context, slot));
  }
  ops::quantize_current(context.stream, x, slot.amax, slot.scale_inv, cast.codes, statistics);
}

void LinearOperands::complete_cast(const StepContext& context, const Cast& cast,
                                   ConstView block_amax) {
  const Stream& stream = context.stream;
  const QuantizedTensor& codes = cast.codes;
  if (!codes.rowwise.codes.empty() && !codes.columnwise.codes.empty()) {
    ops::transpose_codes(stream, codes.rowwise.codes, codes.columnwise.codes);
  }
  if (!blockwise(codes.format) || codes.rowwise.codes.empty()) {
    return;
  }
  for (const Quantized* part : {&codes.rowwise, &codes.columnwise}) {
    if (!part->codes.empty()) {
      clear_padding(context, codes.format, codes.layout, *part);
      ops::find_block_scales(stream, {.amax = block_amax,
                                      .shape = codes.rowwise.codes.shape,
                                      .format = codes.format,
                                      .layout = codes.layout,
                                      .transposed = part == &codes.columnwise,
                                      .scale_inv = part->scale_inv});
    }
  }
}

void LinearOperands::fill_sample(const StepContext& context, ConstView x, const Cast& cast) {
  if (!context.collect_statistics) {
    return;
  }
  const TensorFormat& format = cast.slot->format;
  const bool only_along_columns =
      blockwise(format) && cast.codes.rowwise.codes.empty() && format.block.rows <= 1;
  (only_along_columns ? sample_amax : sample_cast)(context, x, *cast.slot);
}

LinearOperands::Pair LinearOperands::make_operands(const StepContext& context, const Source& source,
                                                   Wanted wanted,
                                                   const Destinations& destinations) const {
  Cast rows;
  Cast columns;
  for (const ScalingSlot* slot : {rows_, columns_ == rows_ ? nullptr : columns_}) {
    const Wanted here = of_slot(slot, wanted);
    if (!here.along_rows && !here.along_columns) {
      continue;
    }
    const bool made = slot == source.slot;
    Cast cast = {.slot = slot, .codes = source.codes};
    if (!made || source.codes.empty()) {
      cast =
          allocate_cast(context.device->traits(), slot, source.plain.shape, wanted, destinations);
      quantize_tensor(context, source.plain, cast, made);
    }
    fill_sample(context, source.plain, cast);
    rows = here.along_rows ? cast : rows;
    columns = here.along_columns ? cast : columns;
  }
  return {make_operand(rows, source.plain, false), make_operand(columns, source.plain, true)};
}

LinearOperand LinearOperands::make_operand(const Cast& cast, ConstView plain,
                                           bool along_columns) const {
  LinearOperand operand;
  operand.along_columns = along_columns;
  operand.dequantize = along_columns && with_plain_ && cast.slot != nullptr;
  if (cast.slot == nullptr) {
    operand.plain = plain;
    return operand;
  }
  operand.quantized = cast.codes;
  const bool columnwise = along_columns && !cast.codes.columnwise.codes.empty();
  (columnwise ? operand.quantized.rowwise : operand.quantized.columnwise) = {};
  return operand;
}

std::vector<LinearOperands::Cast> LinearOperands::allocate_casts(
    const DeviceTraits& traits, const Shape& shape, const Destinations& destinations) const {
  std::vector<Cast> casts;
  for (const ScalingSlot* slot : {rows_, columns_ == rows_ ? nullptr : columns_}) {
    if (slot != nullptr) {
      casts.push_back(allocate_cast(traits, slot, shape, {true, true}, destinations));
    }
  }
  return casts;
}

LinearOperand LinearOperands::operand(const std::vector<Cast>& casts, ConstView plain,
                                      bool along_columns) const {
  for (const Cast& cast : casts) {
    if (cast.slot == (along_columns ? columns_ : rows_)) {
      return make_operand(cast, plain, along_columns);
    }
  }
  return make_operand({}, plain, along_columns);
}

}  // namespace fp8train
