#include "nn/linear_operands.h"

#include "base/error.h"
#include "nn/cast_error.h"
#include "ops/elementwise.h"
#include "ops/granules.h"
#include "ops/quantize.h"

namespace fp8train {
namespace {

bool granular(const TensorFormat& format) {
  return format.is_scaled() && format.granularity != Granularity::tensor;
}

bool is_block(const TensorFormat& format) {
  return format.granularity == Granularity::block_1x128 ||
         format.granularity == Granularity::block_128x128;
}

/// The format in which a GEMM reads an operand whose other operand has the format `other`: beside
/// row scales, one scale per tensor is the same scale for each row.
TensorFormat read_as(TensorFormat format, const TensorFormat& other) {
  if (format.granularity == Granularity::tensor && other.granularity == Granularity::row) {
    format.granularity = Granularity::row;
  }
  return format;
}

/// The operands of one GEMM: both plain, or scaled in granularities that a product knows; along
/// columns one of them may be plain, along rows this one.
void check_pair(const TensorFormat& a, const TensorFormat& b, bool along_columns) {
  if (a.is_scaled() != b.is_scaled() && (along_columns || !a.is_scaled())) {
    return;
  }
  check(a.is_scaled() == b.is_scaled(), "a GEMM has one scaled and one plain operand");
  const Granularity read_a = read_as(a, b).granularity;
  const Granularity read_b = read_as(b, a).granularity;
  check(read_a == read_b || (is_block(a) && is_block(b)),
        "the granularities of a GEMM's operands do not go together");
  check(read_a != Granularity::block_128x128 || read_b != Granularity::block_128x128,
        "no GEMM of two operands with 128x128 scales");
}

ScaleLayout layout_of(const DeviceTraits& traits) {
  return traits.scaled_gemm_by_library ? ScaleLayout::cublaslt : ScaleLayout::row_major;
}

DType scale_dtype(const TensorFormat& format) {
  return format.scale_type == ScaleType::e8m0 ? DType::e8m0 : DType::f32;
}

GranuleView place_granules(const LinearOperands::Memory& memory, const TensorFormat& format,
                           ScaleLayout layout, const Shape& shape) {
  const int64_t scales =
      ops::granule_grid(format.granularity, shape.rows(), shape.back(), layout).count;
  return {.codes = memory(format.dtype, {shape.rows(), shape.back()}),
          .scale_inv = memory(scale_dtype(format), {scales})};
}

/// What a cast needs besides the codes: the scales themselves for rows, zeros where no scale is
/// written.
void prepare_granules(const StepContext& context, const TensorFormat& format, ScaleLayout layout,
                      GranuleView& view) {
  if (view.codes.empty()) {
    return;
  }
  const Shape& shape = view.codes.shape;
  const ops::GranuleGrid grid =
      ops::granule_grid(format.granularity, shape.rows(), shape.back(), layout);
  if (format.granularity == Granularity::row) {
    view.scale = allocate(*context.scratch, DType::f32, {grid.count}).as<float>();
  }
  if (grid.count != grid.rows * grid.columns) {
    const auto bytes = static_cast<int64_t>(view.scale_inv.bytes());
    ops::fill(context.stream, {view.scale_inv.data, DType::f32, {bytes / 4}}, 0.0F);
  }
}

/// The values of a quantized operand that is read as they are, in scratch.
LinearOperand plain_values(const StepContext& context, const LinearOperand& operand, DType dtype) {
  const bool granules = !operand.granules.matrix.codes.empty();
  const View& codes = granules ? operand.granules.matrix.codes : operand.codes.codes;
  const View values = allocate(*context.scratch, dtype, codes.shape);
  if (granules) {
    ops::dequantize_granules(context.stream, operand.granules.matrix, operand.granules.format,
                             operand.granules.layout, values);
  } else {
    ops::dequantize(context.stream, operand.codes, values);
  }
  return {.plain = values, .codes = {}, .granules = {}, .along_columns = operand.along_columns};
}

ops::GemmOperand first(const LinearOperand& a) {
  if (!a.codes.codes_transposed.empty()) {
    return {a.codes.codes_transposed, false, a.codes.scale_inv};
  }
  if (!a.codes.empty()) {
    return {a.codes.codes, a.along_columns, a.codes.scale_inv};
  }
  return {a.plain, a.along_columns};
}

/// Contiguous along the contracted extent means that the transpose of the second operand is stored.
ops::GemmOperand second(const LinearOperand& b) {
  if (!b.codes.codes_transposed.empty()) {
    return {b.codes.codes_transposed, true, b.codes.scale_inv};
  }
  if (!b.codes.empty()) {
    return {b.codes.codes, !b.along_columns, b.codes.scale_inv};
  }
  return {b.plain, !b.along_columns};
}

/// The operand beside one that has a scale for each granule.
ops::ScaledGemmOperand beside(const StepContext& context, const LinearOperand& operand,
                              const TensorFormat& other) {
  if (!operand.granules.matrix.codes.empty()) {
    return operand.granules;
  }
  const QuantizedView& codes = operand.codes;
  const View matrix = operand.along_columns ? codes.codes_transposed : codes.codes;
  const View scales = allocate(*context.scratch, DType::f32, {matrix.shape.rows()});
  ops::fill(context.stream, scales, 1.0F);
  ops::scale_by(context.stream, scales, codes.scale_inv);
  return {.matrix = {.codes = matrix, .scale_inv = scales},
          .format = read_as(codes.format, other),
          .layout = layout_of(context.device->traits())};
}

/// A place for codes of this shape, without memory.
ops::ScaledGemmOperand shape_only(const TensorFormat& format, const DeviceTraits& traits,
                                  int64_t rows, int64_t columns) {
  const LinearOperands::Memory none = [](DType dtype, const Shape& shape) {
    return View{nullptr, dtype, shape};
  };
  const ScaleLayout layout = layout_of(traits);
  return {place_granules(none, format, layout, {rows, columns}), format, layout};
}

}  // namespace

void multiply(const StepContext& context, const LinearProduct& product) {
  ArenaScope scope(*context.scratch);
  const DType plain_type = (product.a.dequantize ? product.b : product.a).plain.dtype;
  const LinearOperand a =
      product.a.dequantize ? plain_values(context, product.a, plain_type) : product.a;
  const LinearOperand b =
      product.b.dequantize ? plain_values(context, product.b, plain_type) : product.b;
  if (a.granules.matrix.codes.empty() && b.granules.matrix.codes.empty()) {
    ops::gemm(context.stream, {.a = first(a),
                               .b = second(b),
                               .c = product.c,
                               .beta = product.beta,
                               .bias = product.bias,
                               .fast_accumulate = product.fast_accumulate});
    return;
  }
  ops::ScaledGemm call = {.a = beside(context, a, b.granules.format),
                          .b = beside(context, b, a.granules.format),
                          .c = product.c,
                          .beta = product.beta,
                          .bias = product.bias,
                          .fast_accumulate = product.fast_accumulate};
  const size_t bytes = ops::scaled_gemm_scratch_bytes(context.device->traits(), call);
  if (bytes > 0) {
    call.scratch = allocate(*context.scratch, DType::u8, {static_cast<int64_t>(bytes)});
  }
  ops::scaled_gemm(context.stream, call);
}

std::array<std::string_view, 3> dequantized_because(const DeviceTraits& traits,
                                                    const LinearPlan& plan, int64_t rows) {
  const int64_t in = plan.site.in_features;
  const int64_t out = plan.site.out_features;
  const auto reason = [&traits](const GemmPlan& gemm, DType result, const Shape& mkn) {
    if (gemm.a.is_scaled() != gemm.b.is_scaled()) {
      return std::string_view{
          "straight-through: the rounded values, beside an operand that is not"};
    }
    if (!granular(gemm.a) && !granular(gemm.b)) {
      return std::string_view{};
    }
    return ops::scaled_gemm_support(
               traits, {.a = shape_only(read_as(gemm.a, gemm.b), traits, mkn[0], mkn[1]),
                        .b = shape_only(read_as(gemm.b, gemm.a), traits, mkn[2], mkn[1]),
                        .c = {nullptr, result, {mkn[0], mkn[2]}},
                        .bias = {},
                        .scratch = {}})
        .reason;
  };
  return {reason(plan.fprop, plan.activation, {rows, in, out}),
          reason(plan.dgrad, plan.activation, {rows, out, in}),
          reason(plan.wgrad, DType::f32, {out, rows, in})};
}

LinearOperands::LinearOperands(ScalingState& scaling, const std::string& layer,
                               const Role& along_rows, const Role& along_columns)
    : beside_granules_(granular(along_columns.other)),
      beside_plain_(along_columns.format.is_scaled() && !along_columns.other.is_scaled()) {
  check(!beside_plain_ || along_columns.format == along_rows.format,
        "beside a plain operand the codes of the other GEMM are read");
  for (const Role* role : {&along_rows, &along_columns}) {
    check_pair(role->format, role->other, role == &along_columns);
    check(!granular(role->format) || role->format.policy == ScalePolicy::current,
          "a scale for each granule follows from the granule itself");
  }
  if (along_rows.format.is_scaled()) {
    rows_ = scaling.add(layer, along_rows.name, along_rows.format);
  }
  if (along_columns.format.is_scaled()) {
    const bool same = rows_ != nullptr && along_rows.format == along_columns.format;
    columns_ = same ? rows_ : scaling.add(layer, along_columns.name, along_columns.format);
  }
}

/// Whether codes for the GEMM along columns are the transposed ones.
bool LinearOperands::turned(const DeviceTraits& traits) const {
  return !beside_plain_ && (traits.fp8_gemm_along_k_only || beside_granules_);
}

LinearOperands::Wanted LinearOperands::of_slot(const ScalingSlot* slot, Wanted wanted) const {
  return {wanted.along_rows && slot != nullptr && slot == rows_,
          wanted.along_columns && slot != nullptr && slot == columns_};
}

const ScalingSlot* LinearOperands::slot_for_producer(Wanted wanted) const {
  const auto castable = [](const ScalingSlot* slot) {
    return slot != nullptr && slot->format.granularity == Granularity::tensor;
  };
  if (wanted.along_rows && castable(rows_)) {
    return rows_;
  }
  return wanted.along_columns && castable(columns_) ? columns_ : nullptr;
}

LinearOperands::Cast LinearOperands::place(const DeviceTraits& traits, const ScalingSlot* slot,
                                           const Shape& shape, Wanted wanted,
                                           const Places& places) const {
  const Wanted here = of_slot(slot, wanted);
  Cast cast = {.slot = slot, .codes = {}, .granules = {}};
  const TensorFormat& format = slot->format;
  const Shape transposed = {shape.back(), shape.rows()};
  if (granular(format)) {
    cast.granules.format = format;
    cast.granules.layout = layout_of(traits);
    if (here.along_rows || beside_plain_) {
      const bool kept = beside_plain_ && here.along_columns;
      cast.granules.rowwise = place_granules(kept ? places.along_columns : places.along_rows,
                                             format, cast.granules.layout, shape);
    }
    if (here.along_columns && !beside_plain_) {
      cast.granules.columnwise =
          place_granules(places.along_columns, format, cast.granules.layout, transposed);
    }
    return cast;
  }
  const bool turn = here.along_columns && turned(traits);
  cast.codes = {.codes = {},
                .codes_transposed = {},
                .scale = slot->scale,
                .scale_inv = slot->scale_inv,
                .format = format};
  if (here.along_rows || !turn) {
    const bool both = here.along_columns && !turn;
    cast.codes.codes = (both ? places.along_columns : places.along_rows)(format.dtype, shape);
  }
  if (turn) {
    cast.codes.codes_transposed = places.along_columns(format.dtype, transposed);
  }
  return cast;
}

bool LinearOperands::scales_now(const StepContext& context, const TensorFormat& format) {
  const bool first = format.policy == ScalePolicy::delayed && format.delayed.current_at_first;
  return format.policy == ScalePolicy::current || (first && context.first_window);
}

void LinearOperands::fill(const StepContext& context, ConstView x, const Cast& cast,
                          bool amax_known) {
  const ScalingSlot& slot = *cast.slot;
  ops::QuantizeStatistics* statistics = context.collect_statistics ? slot.statistics : nullptr;
  if (granular(slot.format)) {
    ArenaScope scope(*context.scratch);
    GranuleQuantizedView out = cast.granules;
    prepare_granules(context, out.format, out.layout, out.rowwise);
    prepare_granules(context, out.format, out.layout, out.columnwise);
    // The amax is for ScalingState::update, which learns of infinities from it.
    ops::quantize_granules(context.stream, x, out, context.training ? slot.amax : nullptr,
                           statistics);
    return;
  }
  const bool now = scales_now(context, slot.format);
  if (now) {
    if (!amax_known) {
      ops::amax(context.stream, x, slot.amax);
    }
    ops::compute_current_scale(context.stream, slot.amax, slot.format, slot.scale, slot.scale_inv);
  }
  const bool record = context.training && !now;
  ops::quantize(context.stream, x, cast.codes, record ? slot.amax : nullptr, statistics);
}

void LinearOperands::sample(const StepContext& context, ConstView x, const Cast& cast) {
  if (!context.collect_statistics) {
    return;
  }
  const TensorFormat& format = cast.slot->format;
  const bool only_along_columns = granular(format) && cast.granules.rowwise.codes.empty() &&
                                  format.granularity != Granularity::block_128x128;
  (only_along_columns ? sample_amax : sample_cast)(context, x, *cast.slot);
}

LinearOperands::Pair LinearOperands::make(const StepContext& context, const Source& source,
                                          Wanted wanted, const Places& places) const {
  Cast rows;
  Cast columns;
  for (const ScalingSlot* slot : {rows_, columns_ == rows_ ? nullptr : columns_}) {
    const Wanted here = of_slot(slot, wanted);
    if (!here.along_rows && !here.along_columns) {
      continue;
    }
    const bool made = slot == source.slot;
    Cast cast = {.slot = slot, .codes = source.codes, .granules = {}};
    if (!made || source.codes.empty()) {
      cast = place(context.device->traits(), slot, source.plain.shape, wanted, places);
      fill(context, source.plain, cast, made);
    }
    sample(context, source.plain, cast);
    rows = here.along_rows ? cast : rows;
    columns = here.along_columns ? cast : columns;
  }
  return {read(rows, source.plain, false), read(columns, source.plain, true)};
}

LinearOperand LinearOperands::read(const Cast& cast, ConstView plain, bool along_columns) const {
  LinearOperand operand;
  operand.along_columns = along_columns;
  operand.dequantize = along_columns && beside_plain_ && cast.slot != nullptr;
  if (cast.slot == nullptr) {
    operand.plain = plain;
  } else if (granular(cast.slot->format)) {
    const bool columnwise = along_columns && !beside_plain_;
    operand.granules = {.matrix = columnwise ? cast.granules.columnwise : cast.granules.rowwise,
                        .format = cast.granules.format,
                        .layout = cast.granules.layout};
  } else {
    operand.codes = cast.codes;
    const bool turned = along_columns && !cast.codes.codes_transposed.empty();
    (turned ? operand.codes.codes : operand.codes.codes_transposed) = {};
  }
  return operand;
}

std::vector<LinearOperands::Cast> LinearOperands::place_all(const DeviceTraits& traits,
                                                            const Shape& shape,
                                                            const Places& places) const {
  std::vector<Cast> casts;
  for (const ScalingSlot* slot : {rows_, columns_ == rows_ ? nullptr : columns_}) {
    if (slot != nullptr) {
      casts.push_back(place(traits, slot, shape, {true, true}, places));
    }
  }
  return casts;
}

LinearOperand LinearOperands::operand(const std::vector<Cast>& casts, ConstView plain,
                                      bool along_columns) const {
  for (const Cast& cast : casts) {
    if (cast.slot == (along_columns ? columns_ : rows_)) {
      return read(cast, plain, along_columns);
    }
  }
  return read({}, plain, along_columns);
}

}  // namespace fp8train
