#pragma once
// Optimizer steps and gradient norms. All state stays on the device; a step that must be skipped
// (non-finite gradient) is decided there.

#include <cstdint>

#include "base/host_device.h"
#include "base/math.h"
#include "device/stream.h"
#include "ops/cast/quantize.h"
#include "tensor/encoded.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// sum_of_squares adds the squares of a chunk of elements, then the sums of a group of chunks.
constexpr int64_t kSquaresChunk = 4096;  // elements
constexpr int64_t kSquaresGroup = 4096;  // chunks
/// The sums of chunks for `count` elements: doubles of the scratch of sum_of_squares.
constexpr FP8TRAIN_HD int64_t squares_partial_sums(int64_t count) {
  return ceil_div(count, kSquaresChunk);
}

/// *accumulator += sum of x^2 in fp64, by a fixed tree, so that any thread count and device gives
/// the same bits: chunks of kSquaresChunk elements over 16 lanes (element i in lane i % 16, in
/// order), groups of kSquaresGroup chunks over 256 lanes, then the groups over 256 lanes; the lanes
/// of a sum are folded in halves. A NaN or infinity in x makes it non-finite. `scratch`:
/// fp64-aligned, squares_partial_sums(count) doubles. `read_as`: as AdamW::gradient_read_as, for an
/// fp32 x.
void sum_of_squares(Stream stream, ConstView x, double* accumulator, View scratch,
                    DType read_as = DType::f32);

/// Device scalars that steer one optimizer step.
struct StepControl {
  double squared_norm;    ///< in: of the gradients as stored, which have the loss scale
  double lr;              ///< in: learning rate of the step
  float gradient_factor;  ///< out: factor of gradients: the clip factor divided by the loss scale
  float gradient_norm;    ///< out: norm after removing the loss scale, before clipping
  float loss_scale;       ///< scale of the gradients in the buffer; 1 without loss scaling
  int32_t skip;  ///< out: 1 when the norm is not finite: the optimizer must not touch anything
  int32_t good_steps;        ///< dynamic loss scaling: steps since the last change
  int64_t skipped_steps;     ///< in, out: counted
  int64_t applied_steps;     ///< in, out: Adam's t after this step
  int64_t skipped_in_a_row;  ///< in, out: steps skipped since the last one that was applied
};

/// The rule of loss scaling; if dynamic, that of torch.amp.GradScaler.
struct LossScaling {
  bool dynamic = false;
  int32_t growth_interval = 2000;  ///< good steps before the scale doubles
  float growth_factor = 2.0F;
  float backoff_factor = 0.5F;
};

/// Turns squared_norm into gradient_factor, skip and counters. `max_norm` <= 0: no clipping. As
/// torch.nn.utils.clip_grad_norm_: factor = min(1, max_norm / (norm + 1e-6)). With
/// scaling.dynamic, loss_scale then becomes that of the next step, as torch.amp.GradScaler: times
/// backoff_factor after a skipped step, but not below 1; times growth_factor (unless that
/// overflows) after growth_interval good ones. `scaling` is host memory. A skipped step has
/// gradient_factor 0.
void prepare_step(Stream stream, StepControl* control, float max_norm, const LossScaling& scaling);

/// The arguments of adamw().
struct AdamW {
  Encoded weight;    ///< updated
  Encoded gradient;  ///< read only
  Encoded moment1;   ///< updated
  Encoded moment2;   ///< updated
  View copy;         ///< bf16 or fp16 copy of the new weight as it is stored; may be empty
  double beta1, beta2, eps, weight_decay;  ///< double, so that 1 - beta is torch's
  QuantizeSink cast = {};  ///< of the new weight, or, in a skipped step, of the weight as it is;
                           ///< only with an fp32 weight
  RoundingStream rounding = {};  ///< bits of stochastic formats; the step is control->applied_steps
  bool amax_known = false;       ///< the slots next to the scales of whole tensors have the amax
  /// bf16: an fp32 gradient is read as ops::store and ops::read_stored would leave it in bf16,
  /// which takes no pass of its own.
  DType gradient_read_as = DType::f32;
};

/// Decoupled weight decay (Loshchilov and Hutter; the order of torch.optim.AdamW): w -= lr * wd *
/// w; then w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps). lr =
/// control->lr, t = control->applied_steps. All four tensors are of one count, each in a format of
/// its own, and decoded to fp32: the update reads the new moments before they are rounded. Scales
/// follow from the new values: one for a tensor takes a pass over the update before anything is
/// stored. Where the code of m is not zero, a scaled v keeps its smallest code instead of zero, so
/// that no step divides by eps alone. When control->skip only `cast` is done, since its scale may
/// have changed.
void adamw(Stream stream, const AdamW& call, const StepControl* control);

/// Finds the amax for a call whose tensors are parts of larger ones: the largest new magnitude of
/// each tensor that has one scale goes next to that scale, where it is combined with those of the
/// other parts. adamw() with `amax_known` then has the scales that the whole would have, also where
/// a part has no elements. Nothing changes if control->skip is not 0.
void adamw_amax(Stream stream, const AdamW& call, const StepControl* control);

/// The arguments of sgd().
struct Sgd {
  View weight;         ///< fp32, updated
  ConstView gradient;  ///< fp32
  View momentum;       ///< fp32, updated; may be empty
  View copy;           ///< bf16 or fp16 copy of the new weight; may be empty
  double momentum_factor, weight_decay;
};

/// torch.optim.SGD with decoupled decay: w -= lr * wd * w; buf = mu * buf + g; w -= lr * buf (or g
/// without momentum), with lr = control->lr. Nothing changes if control->skip is not 0.
void sgd(Stream stream, const Sgd& call, const StepControl* control);

}  // namespace fp8train::ops
