#pragma once
// A QuantizedInput is all that a layer owns of one tensor that two GEMMs read (x, w or dy of a
// linear layer): its scaling slots, the memory that its producer writes, its casts and the operands
// of both GEMMs. One GEMM contracts the tensor along its rows (fprop: x and w; dgrad: dy), the
// other along its columns (wgrad: dy and x; dgrad: w). A format with one scale for the tensor
// serves both with the same codes; one with a scale for each block needs a cast in each
// orientation, since blocks lie along the contracted extent. Next to a plain operand, codes are
// read as the values that they stand for: quantization-aware training, whose backward pass sees the
// rounded values and not the rounding (straight-through).
//
// A pass has three calls. Between the last two the codes are complete and no GEMM has read them:
//
//   const InputTensor x = x_.allocate(context, type, shape, memory);     // its producer writes it
//   const QuantizedInput::Operands operands = x_.operands(context, x, memory);
//   multiply(context, {.plan = plan, .a = operands.along_rows, .b = weight, .c = y});
//
// Owns no memory; all work is asynchronous on the context's stream.

#include <array>
#include <string>
#include <vector>

#include "nn/context.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/gemm.h"
#include "precision/scaling_state.h"
#include "tensor/tensor.h"

namespace fp8train {

/// Whether each block has a scale, and not the tensor.
inline bool blockwise(const TensorFormat& format) {
  return format.is_scaled() && format.block != per::tensor;
}

/// A tensor that GEMMs are to read: memory for its producer, and then what the producer left there.
struct InputTensor {
  InputTensor() = default;
  /// A tensor that is there already. It is only read.
  InputTensor(ConstView x) : plain{const_cast<void*>(x.data), x.dtype, x.shape} {}
  InputTensor(const View& x) : plain(x) {}

  View plain;                         ///< [rows, width]; no memory where nobody reads it
  ops::QuantizeSink cast;             ///< cast that the producer makes
  const ScalingSlot* slot = nullptr;  ///< slot of `cast`; null: nothing to cast
  /// fp32 [width], for the producer too: it finds the scales, and makes a tensor whose columns are
  /// multiplied by them. Empty: a tensor as it is.
  View smoothing;
};

/// The extent along which a GEMM contracts a tensor.
enum class Along : uint8_t { rows, columns };

/// Which part of a tensor each rank of the tensor axis has.
struct Cut {
  enum Extent : uint8_t { none, rows, columns } of = none;
  /// This rank's part of each piece of that extent which is cut by itself, for the random bits of
  /// casts: they are those of the whole.
  std::vector<int64_t> pieces;
};

/// One cast of a tensor, with the scaling of `slot`.
struct TensorCast {
  const ScalingSlot* slot = nullptr;
  Cut cut;  ///< ranks have parts: they agree on scales that follow from parts of several
  QuantizedTensor codes;
  /// Whether some scales of an orientation are padding, which casts do not write.
  bool pads_rowwise = false, pads_columnwise = false;

  /// Gives its views memory, by functions of a DType and a Shape that return a View.
  template <typename Rowwise, typename Columnwise>
  void allocate(const Rowwise& rowwise, const Columnwise& columnwise);

  /// Casts x. `amax_known`: the slot has the amax of x already.
  void quantize(const StepContext& context, ConstView x, bool amax_known) const;
  /// Completes rowwise codes that were cast elsewhere: makes their transpose and, if each block has
  /// a scale, the scales that follow from `block_amax` (ops/cast/blockwise_parts.h).
  void complete(const StepContext& context, ConstView block_amax) const;
  /// In a step that collects statistics: fills the slot's sample, while the slot has the scale that
  /// x was cast with.
  void fill_sample(const StepContext& context, ConstView x) const;
  /// Returns what a GEMM reads.
  ops::GemmOperand operand(Along along) const;

 private:
  void quantize_blocks(const StepContext& context, ConstView x) const;
  View shared_magnitudes(const QuantizedTensor& out) const;
};

/// The scaling of one tensor that two GEMMs read.
class QuantizedInput {
 public:
  /// The tensor in one GEMM: its name in the scaling state, its format, and that of the operand
  /// that it is multiplied with.
  struct Role {
    std::string name;
    TensorFormat format, other;
    bool of_pass = true;  ///< the tensor is another one in each pass
    Cut cut = {};         ///< in both GEMMs
  };
  /// The memory of the operands of the GEMMs that a pass runs; null for one that it does not run.
  /// Codes that both read lie along columns.
  struct Memory {
    Arena* along_rows = nullptr;
    Arena* along_columns = nullptr;

    bool operator==(const Memory&) const = default;
  };
  struct Operands {
    ops::GemmOperand along_rows, along_columns;
  };

  /// Registers a slot for each scaled role; roles with the same format share one. In evaluation the
  /// GEMM along rows reads codes if `in_evaluation`. Throws InternalError for formats that no cast
  /// makes or no product reads together.
  QuantizedInput(ScalingState& scaling, const std::string& layer, const Role& along_rows,
                 const Role& along_columns, bool in_evaluation = true);

  /// Returns the slot of the codes that a GEMM reads; null: it never reads any.
  const ScalingSlot* slot(Along along) const { return along == Along::rows ? rows_ : columns_; }
  /// Returns the slot if both GEMMs read only its codes, as they are or transposed; otherwise null.
  const ScalingSlot* only_slot() const;
  /// Whether that GEMM reads codes in this pass, if it runs.
  bool reads_codes(const StepContext& context, Along along) const;

  /// Allocates memory for the operation that makes the tensor. With delayed scaling it writes codes
  /// at once, and the tensor itself only if a GEMM or something else (which then finds it in
  /// `plain`, or a step that collects statistics) reads it; with current scaling the tensor and its
  /// amax; with a scale for each block the tensor alone. Valid as long as the caller's scopes of
  /// the arenas.
  InputTensor allocate(const StepContext& context, DType type, const Shape& shape, Memory memory,
                       Arena* plain = nullptr) const;
  /// Returns the operands of the GEMMs that run, cast unless the producer of x has done that. The
  /// operand of a GEMM that does not run is x itself. `is_whole`: no rank has a part of this x.
  Operands operands(const StepContext& context, const InputTensor& x, Memory memory,
                    bool is_whole = false) const;

  /// Whether ranks that have rows of the tensor exchange codes of them: with one scale both GEMMs
  /// read the same codes, which each rank makes of its rows. Otherwise the rows cross as they are,
  /// and each rank casts all.
  bool gathers_codes(const StepContext& context) const;
  /// Returns the operands of the rows of all ranks, in scratch: along rows, along columns or both
  /// (`wanted`). `own` is this rank's rows: codes if gathers_codes().
  Operands gathered(const StepContext& context, const ops::GemmOperand& own, Memory wanted) const;

  /// Describes the casts of a tensor that outlives passes: types and shapes, without memory.
  std::vector<TensorCast> casts(const DeviceTraits& traits, const Shape& shape) const;

 private:
  std::array<const ScalingSlot*, 2> slots() const {
    return {rows_, columns_ == rows_ ? nullptr : columns_};
  }
  Memory memory_of_codes(const StepContext& context, Memory memory) const;
  Memory memory_of(const ScalingSlot* slot, Memory memory) const;
  TensorCast describe(const DeviceTraits& traits, const ScalingSlot* slot, const Shape& shape,
                      bool along_rows, bool along_columns) const;
  TensorCast allocate_cast(const StepContext& context, const ScalingSlot* slot, const Shape& shape,
                           Memory memory) const;

  const ScalingSlot* rows_ = nullptr;
  const ScalingSlot* columns_ = nullptr;
  bool with_blockwise_;  // along columns the other operand has a scale for each block
  bool with_plain_;      // along columns the other operand is not scaled
  bool in_evaluation_;
  bool crosses_as_codes_;
  Cut cut_;
};

template <typename Rowwise, typename Columnwise>
void TensorCast::allocate(const Rowwise& rowwise, const Columnwise& columnwise) {
  const auto allocate_part = [&](Encoded& part, const auto& memory) {
    if (part.codes.shape.rank() == 0) {
      return;
    }
    part.codes = memory(part.codes.dtype, part.codes.shape);
    if (blockwise(part.format)) {
      part.scales = memory(part.scales.dtype, part.scales.shape);
    }
    if (part.format.row_scaled) {
      part.row_scales = memory(DType::f32, Shape{part.codes.shape.rows()}).template as<float>();
    }
  };
  allocate_part(codes.rowwise, rowwise);
  allocate_part(codes.columnwise, columnwise);
}

}  // namespace fp8train
