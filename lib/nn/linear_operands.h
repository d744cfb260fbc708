#pragma once
// Makes the GEMM operands of one tensor of a linear layer (x, w or dy) in the formats that its two
// GEMMs ask for. One of them contracts the tensor along its rows (fprop: x and w; dgrad: dy), the
// other along its columns (wgrad: dy and x; dgrad: w). A format with one scale per tensor serves
// both with the same codes; one with a scale for each block needs a separate cast in each
// orientation, since blocks lie along the contracted extent. In a product with a plain operand, a
// scaled one is the dequantized codes of the first GEMM: quantization-aware training, whose
// backward pass sees the rounded values and not the rounding (straight-through). Owns no memory;
// all work is asynchronous on the context's stream.

#include <functional>
#include <string>
#include <vector>

#include "nn/context.h"
#include "nn/linear_product.h"
#include "precision/scaling_state.h"
#include "tensor/quantized.h"
#include "tensor/tensor.h"

namespace fp8train {

class LinearOperands {
 public:
  /// Which of the two GEMMs run, in scaled formats, in this pass.
  struct Wanted {
    bool along_rows, along_columns;
  };
  /// The tensor as it comes: with the amax or the codes of a slot, if its producer made them.
  struct Source {
    ConstView plain;
    const ScalingSlot* slot = nullptr;
    QuantizedTensor codes;
  };
  /// Memory for something of this type and shape.
  using Memory = std::function<View(DType, const Shape&)>;
  /// The memory of casts: one for codes that only the GEMM along rows reads, one for codes that the
  /// GEMM along columns reads too.
  struct Destinations {
    Memory along_rows, along_columns;
  };
  /// One cast of the tensor, with the scaling of `slot`.
  struct Cast {
    const ScalingSlot* slot = nullptr;
    QuantizedTensor codes;
  };
  struct Pair {
    LinearOperand along_rows, along_columns;
  };
  /// A role of the tensor: its name in the scaling state, its format, and that of the operand that
  /// it is multiplied with.
  struct Role {
    std::string name;
    TensorFormat format, other;
    bool of_pass = false;  ///< the tensor is another one in each pass
  };

  /// Registers a slot for each scaled role; roles with the same format share one.
  LinearOperands(ScalingState& scaling, const std::string& layer, const Role& along_rows,
                 const Role& along_columns);

  bool scaled_along_rows() const { return rows_ != nullptr; }
  bool scaled_along_columns() const { return columns_ != nullptr; }
  /// Whether the codes along columns have a scale, and statistics, that no cast along rows has.
  bool columns_have_own_slot() const { return columns_ != nullptr && columns_ != rows_; }

  /// Returns the slot if both GEMMs read only its codes, as they are or transposed; otherwise null.
  const ScalingSlot* only_slot() const;
  /// Returns the slot whose cast or amax the producer of the tensor can make; may be null.
  const ScalingSlot* slot_for_producer(Wanted wanted) const;
  /// Whether codes with the scale of `slot` are all that the GEMMs read.
  bool codes_suffice(const ScalingSlot* slot) const {
    return slot != nullptr && slot == rows_ && slot == columns_;
  }

  /// Allocates the cast of a tensor of `shape` with `slot`, which is not null.
  Cast allocate_cast(const DeviceTraits& traits, const ScalingSlot* slot, const Shape& shape,
                     Wanted wanted, const Destinations& destinations) const;
  /// Whether the slot's amax is 0 now, or is of the same tensor. In a first window it covers all
  /// parts of a tensor that comes in parts, since the history takes the amax of all.
  static bool amax_is_clear(const StepContext& context, const ScalingSlot& slot) {
    const bool in_parts = slot.format.policy == ScalePolicy::delayed;
    return slot.begins_at_zero && (context.amax_is_clear || in_parts);
  }

  /// Casts x to where `cast` says. `amax_known`: the slot has the amax of x already.
  static void quantize_tensor(const StepContext& context, ConstView x, const Cast& cast,
                              bool amax_known);

  /// Completes codes that were cast elsewhere: makes their transpose and, if each block has a
  /// scale, the scales that follow from `block_amax` (ops/cast/blockwise_parts.h).
  static void complete_cast(const StepContext& context, const Cast& cast, ConstView block_amax);

  /// In a step that collects statistics: fills the sample of the slot of `cast`, which is that of
  /// x, while the slot has the scale of the cast.
  static void fill_sample(const StepContext& context, ConstView x, const Cast& cast);

  /// Returns the operands of both GEMMs, cast where that is wanted, otherwise plain. A cast that
  /// the producer of the tensor has made is taken as it is.
  Pair make_operands(const StepContext& context, const Source& source, Wanted wanted,
                     const Destinations& destinations) const;

  /// Allocates the casts of a tensor for both GEMMs, in order. Casts that the plan lacks are left
  /// out.
  std::vector<Cast> allocate_casts(const DeviceTraits& traits, const Shape& shape,
                                   const Destinations& destinations) const;
  /// Returns the operand that one GEMM reads: its cast among `casts`, or `plain` if there is none.
  LinearOperand operand(const std::vector<Cast>& casts, ConstView plain, bool along_columns) const;

 private:
  LinearOperand make_operand(const Cast& cast, ConstView plain, bool along_columns) const;
  Wanted of_slot(const ScalingSlot* slot, Wanted wanted) const;
  bool columnwise(const DeviceTraits& traits) const;

  const ScalingSlot* rows_ = nullptr;
  const ScalingSlot* columns_ = nullptr;
  bool with_blockwise_ = false;  // along columns the other operand has a scale for each block
  bool with_plain_ = false;      // along columns the other operand is not scaled
};

}  // namespace fp8train
