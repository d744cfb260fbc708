#pragma once
// RMSNorm or LayerNorm as a layer. Forward stores the statistics of each row of x. Of x itself,
// which is the residual stream, it stores either nothing, since the stream stays alive, or codes if
// the plan says so, which forward may read too. A pending addition to the stream is made in the
// pass of the norm, or before it if the norm reads codes.

#include "nn/context.h"
#include "nn/parameter.h"
#include "nn/residual.h"
#include "nn/saved_input.h"
#include "ops/norm/norm.h"

namespace fp8train {

/// RMSNorm or LayerNorm, which also adds the previous branch to the residual stream.
class Norm {
 public:
  struct Saved {
    SavedInput x;
    View mean;  ///< fp32 [rows]; LayerNorm only
    View rstd;  ///< fp32 [rows]
  };

  /// Makes LayerNorm, whose `bias` may be null, if `centered`; otherwise RMSNorm, whose `bias` is
  /// null. If `input` has codes, x need not outlive forward. The parameters outlive the layer.
  Norm(Parameter* weight, Parameter* bias, bool centered, float eps, const SavedFormat& input)
      : weight_(weight), bias_(bias), centered_(centered), eps_(eps), input_(input) {}

  /// y = norm of x.value(), which is written if it is due; both [rows, C]. `cast`: y is cast on the
  /// way, and may then be empty (see QuantizeSink).
  void forward(const StepContext& context, const Residual& x, View y, Saved& saved,
               const ops::QuantizeSink& cast = {}) const;

  /// dx, [rows, C], is overwritten, or added to when `accumulate`, so that the residual's gradient
  /// needs no extra pass. Adds to the gradients of weight and bias, or overwrites them
  /// (StepContext::overwrites_gradients).
  void backward(const StepContext& context, ConstView dy, View dx, bool accumulate,
                const Saved& saved) const;

 private:
  void run(const StepContext& context, ConstView x, const ops::ResidualAdd& residual, View y,
           const Saved& saved, const ops::QuantizeSink& cast) const;

  Parameter* weight_;
  Parameter* bias_;
  bool centered_;
  float eps_;
  SavedFormat input_;
};

}  // namespace fp8train
