#include "nn/quantized_input.h"

#include <utility>

#include "base/error.h"
#include "nn/cast_error.h"
#include "ops/cast/blockwise_parts.h"
#include "ops/cast/scale_blocks.h"
#include "ops/gemm/gemm_support.h"
#include "ops/pointwise/elementwise.h"
#include "precision/linear_plan.h"

namespace fp8train {
namespace {

/// Streams of random bits of slots come after those of parameters (RoundingStream).
constexpr uint64_t kRandomOfSlots = uint64_t{1} << 32;

/// Checks that the format has a cast and that the operands of one GEMM go together: both plain, or
/// formats that have a product; along columns one of them may be plain, along rows this one.
void check_role(const QuantizedInput::Role& role, Along along) {
  const TensorFormat& format = role.format;
  if (blockwise(format)) {
    ops::check_blockwise_format(format);
    check(format.policy == ScalePolicy::current,
          "a scale for each block follows from the block itself");
  }
  if (format.is_scaled() != role.other.is_scaled()) {
    check(along == Along::columns || !format.is_scaled(),
          "a GEMM has one scaled and one plain operand");
    return;
  }
  static const DeviceTraits cpu;
  check(ops::gemm_support(cpu, {format, role.other}).native,
        "the formats of a GEMM's operands do not go together");
}

/// Whether the scale is there before the tensor is.
bool is_cast_at_once(const ScalingSlot& slot) {
  return slot.format.policy == ScalePolicy::delayed && !slot.scales_now;
}

/// Whether the slot's amax is 0 now, or is of the same tensor. In a first window it covers all
/// parts of a tensor that comes in parts, since the history takes the amax of all.
bool amax_is_clear(const StepContext& context, const ScalingSlot& slot) {
  const bool in_parts = slot.format.policy == ScalePolicy::delayed;
  return slot.begins_at_zero && (context.amax_is_clear || in_parts);
}

/// Describes one orientation, without memory. Returns whether some of its scales are padding.
bool describe_part(const Shape& matrix, Encoded& part) {
  const TensorFormat& format = part.format;
  part.codes = {nullptr, format.dtype, matrix};
  if (!blockwise(format)) {
    return false;
  }
  const ops::ScaleGrid grid =
      ops::scale_grid(format.block, matrix.rows(), matrix.back(), part.layout);
  part.scales = {nullptr, dtype_of(format.scale_type), {grid.count}};
  return grid.count != grid.rows * grid.columns;
}

/// The rows or columns of the whole that a rank has of its pieces.
ExtentMap whole_extent(const RankExchange& ranks, const std::vector<int64_t>& pieces) {
  check(pieces.size() <= ExtentMap::kMaxRuns, "few pieces are cut by themselves");
  ExtentMap map;
  int64_t own = 0;
  for (const int64_t piece : pieces) {
    map.begins[map.runs] = own;
    map.before[map.runs++] = map.whole + ranks.rank() * piece - own;
    own += piece;
    map.whole += piece * ranks.ranks();
  }
  return map;
}

void clear_padding(const StepContext& context, const TensorCast& cast) {
  for (const auto& [pads, part] : {std::pair{cast.pads_rowwise, &cast.codes.rowwise},
                                   {cast.pads_columnwise, &cast.codes.columnwise}}) {
    if (pads) {
      ops::fill(context.stream, as_words(part->scales), 0.0F);
    }
  }
}

}  // namespace

void TensorCast::quantize(const StepContext& context, ConstView x, bool amax_known) const {
  ops::QuantizeStatistics* statistics = context.collect_statistics ? slot->statistics : nullptr;
  float* const amax = context.training ? slot->amax : nullptr;
  if (blockwise(codes.format())) {
    return quantize_blocks(context, x);
  }
  if (!slot->scales_now) {
    ops::quantize(context.stream, x, codes, amax, statistics);
    return;
  }
  if (!amax_known) {
    ops::amax(context.stream, x, slot->amax, amax_is_clear(context, *slot));
  }
  if (cut.of != Cut::none && context.tensor_ranks != nullptr) {
    context.tensor_ranks->largest(context, {slot->amax, DType::f32, {1}});
  }
  ops::quantize_current(context.stream, x, slot->amax, slot->scale_inv, codes, statistics);
}

/// Scales for which each rank has a part of the values: those of lines that are cut, and that of
/// the tensor above those of blocks. Empty: none, or no orientation has them.
View TensorCast::shared_magnitudes(const QuantizedTensor& out) const {
  const Encoded& lines = cut.of == Cut::columns ? out.rowwise : out.columnwise;
  const TensorFormat& format = out.format();
  if (format.block == per::row || format.row_scaled) {
    float* const of_lines = format.row_scaled ? lines.row_scales : lines.cast_scales;
    return lines.codes.empty() ? View{} : View{of_lines, DType::f32, {lines.codes.shape.rows()}};
  }
  return format.is_two_level() ? View{out.either().tensor_scale, DType::f32, {1}} : View{};
}

void TensorCast::quantize_blocks(const StepContext& context, ConstView x) const {
  ArenaScope scope(*context.scratch);
  QuantizedTensor out = codes;
  for (Encoded* part : {&out.rowwise, &out.columnwise}) {
    if (codes.format().block == per::row && !part->codes.empty()) {
      part->cast_scales =
          fp8train::allocate(*context.scratch, DType::f32, part->scales.shape).as<float>();
    }
  }
  clear_padding(context, *this);
  ops::QuantizeStatistics* statistics = context.collect_statistics ? slot->statistics : nullptr;
  // The amax is for ScalingState::update, which learns of infinities from it.
  float* const amax = context.training ? slot->amax : nullptr;
  ops::CastOptions options = {
      .seed = context.seed, .pass = context.pass, .tensor = kRandomOfSlots + slot->index};
  const bool is_cut = cut.of != Cut::none && context.tensor_ranks != nullptr;
  if (is_cut) {
    (cut.of == Cut::rows ? options.rows : options.columns) =
        whole_extent(*context.tensor_ranks, cut.pieces);
  }
  if (const View magnitudes = is_cut ? shared_magnitudes(out) : View{}; !magnitudes.empty()) {
    options.step = CastStep::amax;
    ops::quantize(context.stream, x, out, amax, nullptr, options);
    context.tensor_ranks->largest(context, magnitudes);
    options.step = CastStep::codes;
  }
  ops::quantize(context.stream, x, out, amax, statistics, options);
}

void TensorCast::complete(const StepContext& context, ConstView block_amax) const {
  const View& rowwise = codes.rowwise.codes;
  if (rowwise.empty()) {
    return;
  }
  if (!codes.columnwise.codes.empty()) {
    ops::transpose_codes(context.stream, rowwise, codes.columnwise.codes);
  }
  if (!blockwise(codes.format())) {
    return;
  }
  clear_padding(context, *this);
  for (const Encoded* part : {&codes.rowwise, &codes.columnwise}) {
    if (!part->codes.empty()) {
      ops::find_block_scales(context.stream, {.amax = block_amax,
                                              .shape = rowwise.shape,
                                              .format = part->format,
                                              .layout = part->layout,
                                              .transposed = part == &codes.columnwise,
                                              .scales = part->scales});
    }
  }
}

void TensorCast::fill_sample(const StepContext& context, ConstView x) const {
  if (!context.collect_statistics) {
    return;
  }
  const bool only_along_columns =
      blockwise(codes.format()) && codes.rowwise.codes.empty() && codes.format().block.rows <= 1;
  (only_along_columns ? sample_amax : sample_cast)(context, x, *slot);
}

ops::GemmOperand TensorCast::operand(Along along) const {
  const bool columns = along == Along::columns;
  if (columns && !codes.columnwise.empty()) {
    return codes.columnwise;
  }
  return {codes.rowwise, columns};
}

QuantizedInput::QuantizedInput(ScalingState& scaling, const std::string& layer,
                               const Role& along_rows, const Role& along_columns,
                               bool in_evaluation)
    : with_blockwise_(blockwise(along_columns.other)),
      with_plain_(along_columns.format.is_scaled() && !along_columns.other.is_scaled()),
      in_evaluation_(in_evaluation),
      crosses_as_codes_(
          crosses_as_codes(along_rows.format, along_columns.format, along_columns.other)),
      cut_(along_rows.cut) {
  check(!with_plain_ || along_columns.format == along_rows.format,
        "with a plain operand the codes of the other GEMM are read");
  check_role(along_rows, Along::rows);
  check_role(along_columns, Along::columns);
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

const ScalingSlot* QuantizedInput::only_slot() const {
  if (rows_ == nullptr || rows_ != columns_ || !is_byte_code(rows_->format.dtype)) {
    return nullptr;
  }
  const ScaleBlock block = rows_->format.block;
  const bool both_ways =
      block == per::tensor || (block.is_square() && !rows_->format.is_two_level());
  return both_ways || with_plain_ ? rows_ : nullptr;
}

bool QuantizedInput::reads_codes(const StepContext& context, Along along) const {
  const bool is_scaled = slot(along) != nullptr && !context.plain;
  return is_scaled && (along == Along::columns || context.training || in_evaluation_);
}

QuantizedInput::Memory QuantizedInput::memory_of_codes(const StepContext& context,
                                                       Memory memory) const {
  return {reads_codes(context, Along::rows) ? memory.along_rows : nullptr,
          reads_codes(context, Along::columns) ? memory.along_columns : nullptr};
}

QuantizedInput::Memory QuantizedInput::memory_of(const ScalingSlot* slot, Memory memory) const {
  return {slot == rows_ ? memory.along_rows : nullptr,
          slot == columns_ ? memory.along_columns : nullptr};
}

InputTensor QuantizedInput::allocate(const StepContext& context, DType type, const Shape& shape,
                                     Memory memory, Arena* plain) const {
  const Memory of_codes = memory_of_codes(context, memory);
  const auto is_castable = [](const ScalingSlot* slot, const Arena* arena) {
    return arena != nullptr && slot->format.block == per::tensor;
  };
  InputTensor x;
  x.plain = {nullptr, type, shape};
  x.slot = is_castable(rows_, of_codes.along_rows)         ? rows_
           : is_castable(columns_, of_codes.along_columns) ? columns_
                                                           : nullptr;
  const bool at_once = x.slot != nullptr && is_cast_at_once(*x.slot);
  const bool codes_suffice = at_once && memory_of(x.slot, of_codes) == memory && plain == nullptr &&
                             !context.collect_statistics;
  if (!codes_suffice) {
    const bool stays = memory.along_columns != nullptr && of_codes.along_columns == nullptr;
    Arena& arena = stays ? *memory.along_columns : plain != nullptr ? *plain : *context.scratch;
    x.plain = fp8train::allocate(arena, type, shape);
  }
  if (at_once) {
    x.cast = {.out = allocate_cast(context, x.slot, shape, memory_of(x.slot, of_codes)).codes,
              .amax = context.training ? x.slot->amax : nullptr,
              .statistics = context.collect_statistics ? x.slot->statistics : nullptr};
  } else if (x.slot != nullptr) {
    x.cast.amax = x.slot->amax;
    if (!amax_is_clear(context, *x.slot)) {
      ops::fill(context.stream, {x.slot->amax, DType::f32, {1}}, 0.0F);
    }
  }
  return x;
}

QuantizedInput::Operands QuantizedInput::operands(const StepContext& context, const InputTensor& x,
                                                  Memory memory, bool is_whole) const {
  Operands operands = {x.plain, {x.plain, true}};
  for (const ScalingSlot* slot : slots()) {
    const Memory of_slot = memory_of(slot, memory_of_codes(context, memory));
    if (slot == nullptr || of_slot == Memory{}) {
      continue;
    }
    TensorCast cast = {.slot = slot, .cut = {}, .codes = x.cast.out};
    const bool is_made = slot == x.slot;
    if (!is_made || x.cast.out.empty()) {
      cast = allocate_cast(context, slot, x.plain.shape, of_slot);
      cast.cut = is_whole ? Cut{} : cut_;
      cast.quantize(context, x.plain, is_made);
    }
    cast.fill_sample(context, x.plain);
    if (of_slot.along_rows != nullptr) {
      operands.along_rows = cast.operand(Along::rows);
    }
    if (of_slot.along_columns != nullptr) {
      operands.along_columns = cast.operand(Along::columns);
    }
  }
  return operands;
}

bool QuantizedInput::gathers_codes(const StepContext& context) const {
  return crosses_as_codes_ && reads_codes(context, Along::rows);
}

QuantizedInput::Operands QuantizedInput::gathered(const StepContext& context,
                                                  const ops::GemmOperand& own,
                                                  Memory wanted) const {
  const ConstView part = own.matrix();
  const int64_t rows = context.rows_of_ranks(part.shape.rows());
  const bool along_k_only = context.device->traits().fp8_gemm_along_k_only && !with_plain_;
  // Whether the GEMM along columns reads what crosses as it is.
  const bool stays = wanted.along_columns != nullptr &&
                     (own.is_plain() ? !reads_codes(context, Along::columns) : !along_k_only);
  const View whole = fp8train::allocate(stays ? *wanted.along_columns : *context.scratch,
                                        part.dtype, {rows, part.shape.back()});
  context.tensor_ranks->gather(context, part, whole);
  if (own.is_plain()) {
    return operands(context, whole, wanted, true);
  }
  Operands both = {own, own};
  both.along_rows.tensor.codes = whole;
  both.along_columns.tensor.codes = whole;
  both.along_columns.transposed = true;
  if (along_k_only && wanted.along_columns != nullptr) {
    const View transposed =
        fp8train::allocate(*wanted.along_columns, part.dtype, {part.shape.back(), rows});
    ops::transpose_codes(context.stream, whole, transposed);
    both.along_columns.tensor.codes = transposed;
    both.along_columns.transposed = false;
  }
  return both;
}

std::vector<TensorCast> QuantizedInput::casts(const DeviceTraits& traits,
                                              const Shape& shape) const {
  std::vector<TensorCast> casts;
  for (const ScalingSlot* slot : slots()) {
    if (slot != nullptr) {
      casts.push_back(describe(traits, slot, shape, slot == rows_, slot == columns_));
    }
  }
  return casts;
}

TensorCast QuantizedInput::describe(const DeviceTraits& traits, const ScalingSlot* slot,
                                    const Shape& shape, bool along_rows, bool along_columns) const {
  const TensorFormat& format = slot->format;
  const bool blocks = blockwise(format);
  const bool columnwise =
      along_columns && !with_plain_ && (blocks || with_blockwise_ || traits.fp8_gemm_along_k_only);
  TensorCast cast = {.slot = slot, .cut = cut_};
  cast.codes.set(&Encoded::format, format);
  if (blocks && traits.fp8_gemm_by_library) {
    cast.codes.set(&Encoded::layout, ScaleLayout::cublaslt);
  }
  if (!blocks || (format.is_two_level() && !format.row_scaled)) {
    cast.codes.set(&Encoded::cast_scales, slot->scale);
    cast.codes.set(&Encoded::tensor_scale, slot->scale_inv);
  }
  if (along_rows || !columnwise) {
    cast.pads_rowwise = describe_part({shape.rows(), shape.back()}, cast.codes.rowwise);
  }
  if (columnwise) {
    cast.pads_columnwise = describe_part({shape.back(), shape.rows()}, cast.codes.columnwise);
  }
  return cast;
}

TensorCast QuantizedInput::allocate_cast(const StepContext& context, const ScalingSlot* slot,
                                         const Shape& shape, Memory memory) const {
  TensorCast cast = describe(context.device->traits(), slot, shape, memory.along_rows != nullptr,
                             memory.along_columns != nullptr);
  const bool is_shared =
      memory.along_columns != nullptr && cast.codes.columnwise.codes.shape.rank() == 0;
  const auto from = [](Arena* arena) {
    return [arena](DType type, const Shape& extents) {
      return fp8train::allocate(*arena, type, extents);
    };
  };
  cast.allocate(from(is_shared ? memory.along_columns : memory.along_rows),
                from(memory.along_columns));
  return cast;
}

}  // namespace fp8train
