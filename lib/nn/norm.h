#pragma once
// RMSNorm or LayerNorm as a layer. The input stays alive (it is the residual stream); forward keeps
// only the row statistics.

#include "nn/context.h"
#include "nn/parameter.h"
#include "ops/quantize.h"

namespace fp8train {

class Norm {
 public:
  struct Saved {
    ConstView x;
    View mean;  ///< LayerNorm only
    View rstd;
  };

  /// `bias` null: RMSNorm, unless `centered` (LayerNorm without bias).
  Norm(Parameter* weight, Parameter* bias, bool centered, float eps)
      : weight_(weight), bias_(bias), centered_(centered), eps_(eps) {}

  /// `cast`: y is cast on the way, and may then be empty (see QuantizeSink).
  void forward(const StepContext& context, ConstView x, View y, Saved& saved,
               const ops::QuantizeSink& cast = {}) const;

  /// dx (+)= : adds to dx when `accumulate`, so that the residual's gradient needs no extra pass.
  void backward(const StepContext& context, ConstView dy, View dx, bool accumulate,
                const Saved& saved) const;

 private:
  Parameter* weight_;
  Parameter* bias_;
  bool centered_;
  float eps_;
};

}  // namespace fp8train
