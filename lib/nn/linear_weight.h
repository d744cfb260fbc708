#pragma once
// The life of a linear layer's weight between an update and the GEMMs that read it: operands that
// are made once per optimizer step by the layer, by the optimizer during the update
// (Parameter::cast) or, if ranks have parts of the weight, by each rank for its own part. All work
// is asynchronous on the context's stream.
//
// With SwigluInput::smoothed fprop reads w / s, where s are the scales of the columns of x
// (ops/pointwise/smoothing.h). That depends on the micro-batch and is cast from the weight's value
// in every forward pass, in addition to dgrad's operand, which is made once per step.
//
// If the library of the device has a layout of its own for weights (ops::pack_operand), the
// operands that training reads, or evaluation where nothing is trained, are also stored in it.
// Passes that read other operands, and parts of a weight, find them as they are.
//
// A frozen weight may be codes alone, with the scales of their rows or blocks (set_codes). Then no
// operand stays: a product reads the codes as they are, if they are in the format of its operand,
// or an operand that is made of them before it.

#include <optional>
#include <vector>

#include "nn/context.h"
#include "nn/linear_product.h"
#include "nn/parameter.h"
#include "nn/quantized_input.h"
#include "precision/linear_plan.h"
#include "precision/scaling_state.h"
#include "tensor/encoded.h"

namespace fp8train {

/// The weight of a linear layer in all its forms: the value, its casts and its gathered form.
class LinearWeight {
 public:
  /// Registers its scaling slots; `weight` [N, K] belongs to the store and may be shared with
  /// others.
  LinearWeight(const LinearPlan& plan, Parameter* weight, ScalingState& scaling);

  /// The weight is codes in `format`, the bytes of its value, and `scales` what they are multiplied
  /// by, fp32, in row-major order.
  void set_codes(const Parameter* scales, const TensorFormat& format);

  /// Registers the slot of w / s for SwigluInput::smoothed. It is not part of the constructor
  /// because the slot follows the layer's other slots, in checkpoints too.
  void add_smoothed(ScalingState& scaling);

  /// Allocates the weight's GEMM operands in the store that has the weight: those that are the
  /// weight as the plan stores it, in addition to a master, are charged to the weights. After the
  /// store and the scaling state have been allocated. Throws DeviceError where the device cannot
  /// compute the plan's products. `trains`: passes train; `runs_backward`: through this layer too.
  void allocate(Device& device, ParameterStore& store, bool trains = true,
                bool runs_backward = true);

  enum class Refresh : uint8_t {
    all,
    after_update,  ///< operands that an optimizer step has not made (it made the plain copy and
                   ///< Parameter::cast)
    again,         ///< all, to the bits that they had: their memory was others' in between
  };
  /// Makes the weight's GEMM operands from its value; once per optimizer step, or again.
  void refresh(const StepContext& context, Refresh what) {
    refresh_operands(context, what);
    pack(context, what);
  }

  /// Where ranks have parts of the weight and its copy or codes are gathered: makes this rank's
  /// part of them, once per optimizer step. First comes the amax of the part, or those of its
  /// blocks (Parameter::block_amax), to be combined with those of other ranks before the part is
  /// made. Returns true if the slot's amax is one of these.
  bool find_part_amax(const StepContext& context) const;
  /// Combines the amax of rows over the ranks that have parts of each row.
  void agree_on_rows(const StepContext& context) const;
  void make_part(const StepContext& context) const;

  /// Returns the weight as fprop reads it in this pass, or w / smoothing, made in scratch, where
  /// `smoothing` is not empty.
  ops::GemmOperand fprop_operand(const StepContext& context, ConstView smoothing) const;
  /// Returns the weight as dgrad reads it.
  ops::GemmOperand dgrad_operand(const StepContext& context) const;

  Parameter& parameter() const { return *weight_; }

 private:
  /// An operand as the device's library reads it: of codes, or of the plain weight.
  struct Packed {
    Along along;
    bool of_codes;
    View memory;
  };

  void refresh_operands(const StepContext& context, Refresh what);
  void allocate_packed(Device& device, ParameterStore& store, bool trains, bool runs_backward);
  void pack(const StepContext& context, Refresh what) const;
  ops::GemmOperand made_operand(Along along, bool of_codes) const;
  ops::GemmOperand weight_operand(const StepContext& context, Along along) const;
  /// In scratch, unless it is the codes as they are.
  ops::GemmOperand operand_of_codes(const StepContext& context, Along along) const;
  Encoded codes() const;
  View decoded(const StepContext& context, DType type) const;
  /// Returns fprop's operand of w / smoothing, in scratch.
  ops::GemmOperand smoothed_weight(const StepContext& context, ConstView smoothing) const;
  /// Returns the weight's value in fp32: the stored one, or a copy in scratch.
  View weight_value(const StepContext& context) const;
  void check_device(const Device& device) const;
  void offer_weight_cast();
  void choose_gathered_form();
  View part_value(const StepContext& context) const;
  void make_part_of_blocks(const StepContext& context, ConstView value) const;
  void cast_again(const StepContext& context, ConstView value) const;
  static View scale_storage(const TensorCast& cast);
  bool is_scaled(Along along) const { return w_.slot(along) != nullptr; }
  bool needs_plain_weight() const;
  /// Whether the value is what a GEMM in the activation type reads.
  bool value_serves() const {
    const TensorFormat& stored = weight_->formats.value;
    return !stored.is_scaled() && stored.dtype == plan_.activation;
  }

  LinearPlan plan_;
  Parameter* weight_;
  QuantizedInput w_;
  std::optional<QuantizedInput> smoothed_w_;  ///< fprop's; w_ is dgrad's alone then
  const Parameter* code_scales_ = nullptr;    ///< not null: the value is codes
  TensorFormat code_format_;
  bool optimizer_casts_ = false;  // the weight, through Parameter::cast
  View plain_copy_;
  std::vector<TensorCast> weight_casts_;
  std::vector<Packed> packed_;
  std::vector<Tensor> stored_scales_;  ///< [2]: inverse, and the scale that was cast with
};

}  // namespace fp8train
