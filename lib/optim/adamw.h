#pragma once
// AdamW, for all parameters or for those that another optimizer leaves to it. Weights, gradients
// and both moments have any formats of the plan (ops::adamw). It owns the moments.

#include <functional>
#include <vector>

#include "optim/optimizer.h"

namespace fp8train {

/// AdamW with decoupled weight decay (arXiv 1711.05101): one call of ops::adamw for each parameter.
class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerSite& site);

  std::vector<const OptimizerState*> states() const override;

 protected:
  /// Makes moments only for the parameters that `updates` names.
  AdamW(const OptimizerSite& site, const std::function<bool(const Parameter&)>& updates);

  Done update(const Update& step, size_t index) override;
  void find_amax(Stream stream) override;
  bool rounds_as_it_reads() const override { return true; }

 private:
  ops::AdamW call(size_t index, const ops::QuantizeSink& cast) const;

  OptimizerState moment1_{"moment1"}, moment2_{"moment2"};
};

}  // namespace fp8train
