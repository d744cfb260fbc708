#pragma once
// The input of an operation other than a GEMM, as backward reads it: the input itself if it stays
// alive, or codes of it. The forward pass reads codes too if the plan says so
// (PrecisionPlan::forward_reads_saved). Decoded values have the type of x.

#include "nn/context.h"
#include "ops/cast/quantize.h"
#include "ops/storage/storage.h"
#include "precision/plan.h"
#include "tensor/tensor.h"

namespace fp8train {

/// How the input of a norm or an activation function is stored, and which forward passes read the
/// codes (none in a stage of the run without scaled GEMMs).
struct SavedFormat {
  TensorFormat format;  ///< unscaled: the input itself; else e4m3 with scales for 16 or 1x128
  bool in_training = false, in_evaluation = false;  ///< forward reads the codes

  bool has_codes() const { return format.is_scaled(); }
  bool in_forward(const StepContext& context) const {
    return has_codes() && !context.plain && (context.training ? in_training : in_evaluation);
  }
};

/// Returns how the plan stores an input. `format`: saved_norm or saved_nonlinear of the plan.
inline SavedFormat saved_format(const PrecisionPlan& plan, const TensorFormat& format) {
  return {format, plan.forward_reads_saved, plan.forward_reads_saved && plan.evaluate_scaled};
}

/// A saved input: a view of x, or codes in an arena of the context.
class SavedInput {
 public:
  /// Saves x for backward: refers to it, or encodes it into context.saved. A pass that does not
  /// train encodes it, into context.scratch, only if the forward pass reads the codes.
  static SavedInput keep(const StepContext& context, ConstView x, const SavedFormat& how);

  /// Whether x has been replaced by codes.
  bool has_codes() const { return !codes_.empty(); }

  /// Decodes the stored codes into y, which has the shape and the type of x and may be x.
  void decode(const StepContext& context, View y) const;

  /// Returns x, or its decoded codes in context.scratch.
  ConstView read(const StepContext& context) const;

 private:
  ConstView x_;
  Encoded codes_;
};

}  // namespace fp8train
