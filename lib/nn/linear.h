#pragma once
// y = x W^T + b with explicit backward, each of its three GEMMs in the format that the plan's roles
// say. The layer quantizes x once in forward and dy once in backward, reads the weight's GEMM
// operands that were made once per optimizer step, and keeps for backward the codes of x that wgrad
// reads, or x itself where wgrad reads that. An operation that makes x or dy can cast it on the
// way: the layer gives it the destinations (place_input, place_gradient) and takes what it has left
// there.
//
// With SwigluInput::smoothed the x that comes is s x, s being a scale for each of its columns
// (ops/pointwise/smoothing.h): fprop multiplies by w / s, which depends on the micro-batch and is
// cast from the weight's value in every forward pass, next to the operands that are made once per
// step; dgrad reads those; the columns of wgrad's product are divided by s.

#include <optional>
#include <string>
#include <vector>

#include "nn/context.h"
#include "nn/linear_operands.h"
#include "nn/parameter.h"
#include "precision/linear_plan.h"
#include "precision/scaling_state.h"
#include "tensor/quantized.h"

namespace fp8train {

class Linear {
 public:
  /// What forward keeps for backward.
  struct Saved {
    LinearOperand x;      ///< as wgrad reads it
    ConstView smoothing;  ///< that x has been multiplied by; empty: nothing
  };

  /// Destinations for an x or dy, in the arenas of the step, and what its producer left there.
  struct Input {
    View plain;              ///< [M, width] in the activation type; no memory where nobody reads it
    ops::QuantizeSink cast;  ///< for the producer
    const ScalingSlot* slot = nullptr;  ///< that `cast` belongs to; null: nothing to cast
    /// fp32 [width], for the producer too: it finds the scales, and makes an x whose columns are
    /// multiplied by them. Empty: an x as it is.
    View smoothing = {};
  };

  /// Registers its scaling slots; `weight` [N, K] and `bias` [N] (may be null) belong to the store
  /// and may be shared with others.
  Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling);

  /// Allocates the weight's GEMM operands in the store that has the weight: those that are the
  /// weight as the plan stores it, in addition to a master, are charged to the weights. After the
  /// store and the scaling state have been allocated.
  void allocate(Device& device, ParameterStore& store);

  enum class Refresh : uint8_t {
    all,
    after_update,  ///< what an optimizer step has not made (the plain copy, Parameter::cast)
    again,         ///< all, to the bits that they had: their memory was others' in between
  };
  /// Makes the weight's GEMM operands from its value; once per optimizer step, or again.
  void refresh_weight(const StepContext& context, Refresh what);

  /// Where ranks have parts of the weight and its copy or codes are gathered: makes this rank's
  /// part of them, once per optimizer step. First comes the amax of the part, or those of its
  /// blocks (Parameter::block_amax), to be combined with those of other ranks before the part
  /// is made. True: the slot's amax is one of these.
  bool find_part_amax(const StepContext& context) const;
  void make_part(const StepContext& context) const;

  /// Whether forward's x must stay alive until backward (place it in context.saved) because codes
  /// do not replace it. In a plain pass it must, unless it is made again.
  bool keeps_input() const { return !plan_.wgrad.b.is_scaled() && !plan_.remade_input; }

  /// Where the operation that makes x writes it for forward, or dy for backward. With delayed
  /// scaling codes are written at once, and x itself only where something reads it (a step that
  /// collects statistics does); with current
  /// scaling x and its amax; with a scale for each block only x. Both stay valid as long as the
  /// caller's scopes of the two arenas.
  Input place_input(const StepContext& context, int64_t rows) const;
  Input place_gradient(const StepContext& context, int64_t rows) const;

  /// With LinearPlan::remade_input: memory for an x that is made again in the backward pass, and
  /// what backward() reads of it, in context.scratch.
  Input place_remade(const StepContext& context, int64_t rows) const;
  Saved save_remade(const StepContext& context, const Input& x) const;

  /// x: [M, K] in the activation type, y: [M, N].
  void forward(const StepContext& context, ConstView x, View y, Saved& saved) const;
  void forward(const StepContext& context, const Input& x, View y, Saved& saved) const;

  /// Adds to the gradients of weight and bias, or overwrites the weight's
  /// (StepContext::overwrites_gradients); dx (when not empty) is overwritten.
  void backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const;
  void backward(const StepContext& context, const Input& dy, View dx, const Saved& saved) const;

  const LinearPlan& plan() const { return plan_; }
  const Parameter& weight() const { return *weight_; }

 private:
  Input place(const StepContext& context, const LinearOperands& operands, const Shape& shape,
              LinearOperands::Wanted wanted, Arena& stored, Arena* plain) const;
  void run_forward(const StepContext& context, const LinearOperands::Source& x, ConstView smoothing,
                   View y, Saved& saved) const;
  void run_backward(const StepContext& context, const LinearOperands::Source& dy, View dx,
                    const Saved& saved) const;
  /// The GEMMs of this pass that read x in scaled formats.
  LinearOperands::Wanted wanted_of_input(const StepContext& context) const;
  LinearOperand weight_operand(bool scaled, bool along_columns) const;
  /// fprop's, of w / smoothing, in scratch.
  LinearOperand smoothed_weight(const StepContext& context, ConstView smoothing) const;
  /// The weight's value in fp32: as it is, or read into scratch.
  View weight_value(const StepContext& context) const;
  /// dW[N, K] (+)= dy^T x.
  void make_weight_gradient(const StepContext& context, const LinearOperand& dy,
                            const Saved& x) const;
  /// Throws DeviceError where the device cannot compute the plan's products.
  void check_device(const DeviceTraits& traits) const;
  void offer_weight_cast();
  void choose_gathered_form();
  View part_value(const StepContext& context) const;
  void make_part_of_blocks(const StepContext& context, ConstView value) const;
  void cast_again(const StepContext& context, ConstView value) const;
  static View scale_storage(const LinearOperands::Cast& cast);
  bool needs_plain_weight() const;
  /// Whether the value is what a GEMM in the activation type reads.
  bool value_serves() const {
    const TensorFormat& stored = weight_->formats.value;
    return !stored.is_scaled() && stored.dtype == plan_.activation;
  }

  LinearPlan plan_;
  Parameter* weight_;
  Parameter* bias_;
  LinearOperands x_, w_, dy_;
  std::optional<LinearOperands> smoothed_w_;  ///< fprop's; w_ is dgrad's alone then
  bool optimizer_casts_ = false;              // the weight, through Parameter::cast
  View plain_copy_;
  std::vector<LinearOperands::Cast> weight_casts_;
  std::vector<Tensor> stored_scales_;  ///< [2]: inverse, and the scale that was cast with
};

}  // namespace fp8train
