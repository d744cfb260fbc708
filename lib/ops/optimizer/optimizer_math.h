#pragma once
// The arithmetic of the optimizers for one element, and of one step's control block, for host and
// device.

#include <math.h>

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/scale.h"
#include "ops/optimizer/optimizer.h"
#include "ops/storage/storage_math.h"

namespace fp8train::ops {

/// base^exponent by squaring: the same bits on every machine, which no libm promises.
FP8TRAIN_HD double integer_power(double base, int64_t exponent) {
  double result = 1.0;
  for (double square = base; exponent > 0; exponent /= 2, square *= square) {
    result = exponent % 2 == 1 ? result * square : result;
  }
  return result;
}

/// Factors that all elements of one AdamW step share: computed in fp64, used in fp32, as torch
/// does with Python's numbers. The corrections of both moments are in the step and in eps (Kingma
/// and Ba, arXiv 1412.6980, end of section 2), so that an element has one division.
struct AdamWFactors {
  float gradient, decay;
  float moment1_weight;         ///< 1 - beta1 where that is below 0.5, else -beta1
  uint32_t from_moment1;        ///< all bits where it is 1 - beta1, else none
  float moment2, moment2_rest;  ///< 1 - beta2, and beta2
  float eps;                    ///< eps * sqrt(1 - beta2^t)
  float step;                   ///< -lr * sqrt(1 - beta2^t) / (1 - beta1^t)
};

/// The scalars of a call.
struct AdamWRates {
  double beta1, beta2, eps, weight_decay;
};

FP8TRAIN_HD AdamWRates rates_of(const AdamW& call) {
  return {call.beta1, call.beta2, call.eps, call.weight_decay};
}

/// Returns the factors of the step that `control` describes.
FP8TRAIN_HD AdamWFactors adamw_factors(const AdamWRates& call, const StepControl& control) {
  const int64_t t = control.applied_steps;
  const double correction1 = 1.0 - integer_power(call.beta1, t);
  const double correction2 = 1.0 - integer_power(call.beta2, t);
  const double root_correction2 = sqrt(correction2);
  const bool from_moment1 = static_cast<float>(1.0 - call.beta1) < 0.5F;
  return {control.gradient_factor,
          static_cast<float>(1.0 - control.lr * call.weight_decay),
          static_cast<float>(from_moment1 ? 1.0 - call.beta1 : -call.beta1),
          from_moment1 ? 0xFFFFFFFFU : 0U,
          static_cast<float>(1.0 - call.beta2),
          static_cast<float>(call.beta2),
          static_cast<float>(call.eps * root_correction2),
          static_cast<float>(-(control.lr * root_correction2 / correction1))};
}

/// One element of torch.optim.AdamW: mul_, lerp_, mul_ and addcmul_, sqrt, add_, addcdiv_, each
/// rounded to fp32; the moments have torch's bits.
FP8TRAIN_HD void adamw_element(const AdamWFactors& factors, float stored_gradient, float& weight,
                               float& moment1, float& moment2) {
  const float g = stored_gradient * factors.gradient;
  // lerp_ starts from the nearer end. A condition would double the code of a loop over elements.
  const uint32_t mask = factors.from_moment1;
  const float nearer = float_of((bits_of(moment1) & mask) | (bits_of(g) & ~mask));
  const float m = nearer + factors.moment1_weight * (g - moment1);
  const float v = moment2 * factors.moment2_rest + factors.moment2 * g * g;
  const float denominator = sqrtf(v) + factors.eps;
  weight = weight * factors.decay + factors.step * m / denominator;
  moment1 = m;
  moment2 = v;
}

/// The factors of one SGD step, which hold for every element.
struct SgdFactors {
  float gradient, decay, momentum, step;  ///< step: -lr
};

FP8TRAIN_HD SgdFactors sgd_factors(const Sgd& call, const StepControl& control) {
  return {control.gradient_factor, static_cast<float>(1.0 - control.lr * call.weight_decay),
          static_cast<float>(call.momentum_factor), static_cast<float>(-control.lr)};
}

/// Returns the new momentum buffer.
FP8TRAIN_HD float sgd_direction(const SgdFactors& factors, float stored_gradient, float momentum) {
  return momentum * factors.momentum + stored_gradient * factors.gradient;
}

/// Returns the new weight.
FP8TRAIN_HD float sgd_weight(const SgdFactors& factors, float weight, float direction) {
  return weight * factors.decay + factors.step * direction;
}

/// Computes ops::prepare_step().
FP8TRAIN_HD void update_step_control(StepControl& control, float max_norm,
                                     const LossScaling& scaling) {
  const float inverse_scale = 1.0F / control.loss_scale;
  const float norm =
      static_cast<float>(sqrt(control.squared_norm) / static_cast<double>(control.loss_scale));
  control.gradient_norm = norm;
  if (!is_finite(norm)) {
    control.skip = 1;
    control.gradient_factor = 0.0F;
    control.skipped_steps += 1;
    control.skipped_in_a_row += 1;
    control.good_steps = 0;
    if (scaling.dynamic) {
      // Not below 1: there a gradient that is not finite is not the scale's fault.
      const float lower = control.loss_scale * scaling.backoff_factor;
      control.loss_scale = lower < 1.0F ? 1.0F : lower;
    }
    return;
  }
  const float clip = max_norm > 0.0F ? max_norm / (norm + 1e-6F) : 1.0F;
  control.skip = 0;
  control.skipped_in_a_row = 0;
  control.gradient_factor = clip < 1.0F ? inverse_scale * clip : inverse_scale;
  control.applied_steps += 1;
  if (!scaling.dynamic) {
    return;
  }
  control.good_steps += 1;
  if (control.good_steps == scaling.growth_interval) {
    const float grown = control.loss_scale * scaling.growth_factor;
    control.loss_scale = is_finite(grown) ? grown : control.loss_scale;
    control.good_steps = 0;
  }
}

}  // namespace fp8train::ops
