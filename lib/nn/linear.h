#pragma once
// y = x W^T + b with explicit backward, each of its three GEMMs in the format that the plan's roles
// say. The layer quantizes x once in forward and dy once in backward, reads the weight's GEMM
// operands that were made once per optimizer step, and stores for backward the codes of x that
// wgrad reads, or x itself if wgrad reads that. An operation that makes x or dy can also cast it:
// the layer gives it the destinations (allocate_input, allocate_gradient) and reads the codes from
// there.
//
// With SwigluInput::smoothed the input is s x, where s is a scale for each column of x
// (ops/pointwise/smoothing.h): fprop multiplies by w / s, which depends on the micro-batch and is
// cast from the weight's value in every forward pass, next to the operands that are made once per
// step; dgrad reads those; the columns of wgrad's product are divided by s.

#include "nn/context.h"
#include "nn/linear_operands.h"
#include "nn/linear_weight.h"
#include "nn/parameter.h"
#include "precision/linear_plan.h"
#include "precision/scaling_state.h"
#include "tensor/quantized.h"

namespace fp8train {

/// A linear layer y = x w^T (+ bias) and its two gradients, in the formats of its plan.
class Linear {
 public:
  /// The tensors that forward stores for backward.
  struct Saved {
    LinearOperand x;      ///< as wgrad reads it
    ConstView smoothing;  ///< x was multiplied by these; empty: by nothing
  };

  /// Destinations for an x or dy, in the arenas of the step, and what its producer left there.
  struct Input {
    View plain;              ///< [M, width] in the activation type; no memory where nobody reads it
    ops::QuantizeSink cast;  ///< cast that the producer of x makes
    const ScalingSlot* slot = nullptr;  ///< slot of `cast`; null: nothing to cast
    /// fp32 [width], for the producer too: it finds the scales, and makes an x whose columns are
    /// multiplied by them. Empty: an x as it is.
    View smoothing = {};
  };

  /// An x or dy that comes: a tensor, or what its producer left in an Input.
  struct Source : LinearOperands::Source {
    Source(ConstView tensor) : LinearOperands::Source{tensor, nullptr, {}} {}
    Source(const View& tensor) : Source(ConstView(tensor)) {}
    Source(const Input& input)
        : LinearOperands::Source{input.plain, input.slot, input.cast.out},
          smoothing(input.smoothing) {}

    ConstView smoothing;
  };

  /// Registers its scaling slots; `weight` [N, K] and `bias` [N] (may be null) belong to the store
  /// and may be shared with others.
  Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling);

  /// Whether forward's x must stay alive until backward (allocated in context.saved) because codes
  /// do not replace it. In a plain pass it must in any case, unless it is made again.
  bool keeps_input() const {
    return !plan_.wgrad.b.is_scaled() && !plan_.remade_input && trains_weight();
  }

  /// Allocates memory for the operation that makes x for forward, or dy for backward. With delayed
  /// scaling it writes codes at once, and x itself only if something reads it (a step that collects
  /// statistics does); with current scaling x and its amax; with a scale for each block only x.
  /// Both stay valid as long as the caller's scopes of the two arenas.
  Input allocate_input(const StepContext& context, int64_t rows) const;
  Input allocate_gradient(const StepContext& context, int64_t rows) const;

  /// Allocates, in context.scratch, an x that is made again in the backward pass
  /// (LinearPlan::remade_input).
  Input allocate_remade(const StepContext& context, int64_t rows) const;
  /// Makes the operands that backward() reads of such an x, once it has been written, in
  /// context.scratch.
  Saved save_remade(const StepContext& context, const Input& x) const;

  /// x: [M, K] in the activation type, y: [M, N]; the weight's operands are up to date
  /// (LinearWeight::refresh). Throws InternalError if an input that the plan smooths comes without
  /// its scales.
  void forward(const StepContext& context, const Source& x, View y, Saved& saved) const;

  /// dy: [M, N], dx: [M, K]. Adds to the gradients of weight and bias, or overwrites them
  /// (StepContext::overwrites_gradients); dx (when not empty) is overwritten.
  void backward(const StepContext& context, const Source& dy, View dx, const Saved& saved) const;

  const LinearPlan& plan() const { return plan_; }
  /// The weight, to be allocated before the first pass and refreshed after each update.
  LinearWeight& weight() { return weight_; }

 private:
  Input allocate_tensor(const StepContext& context, const LinearOperands& operands,
                        const Shape& shape, LinearOperands::Wanted wanted, Arena& stored,
                        Arena* plain) const;
  /// The GEMMs of this pass that read x in scaled formats.
  LinearOperands::Wanted wanted_of_input(const StepContext& context) const;
  LinearOperands::Wanted wanted_of_gradient(const StepContext& context) const;
  bool trains_weight() const { return weight_.parameter().trained; }
  /// dW[N, K] (+)= dy^T x.
  void make_weight_gradient(const StepContext& context, const LinearOperand& dy,
                            const Saved& x) const;

  LinearPlan plan_;
  Parameter* bias_;
  LinearOperands x_;
  LinearWeight weight_;
  LinearOperands dy_;
};

}  // namespace fp8train
