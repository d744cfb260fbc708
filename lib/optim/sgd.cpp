// SGD with momentum and decoupled weight decay (ops::sgd): fp32 weights, gradients and momentum.

#include "base/error.h"
#include "base/key_error.h"
#include "optim/optimizer.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerSite& site) : Optimizer(site) {
    for (size_t i = 0; i < parameters().all().size(); ++i) {
      check_formats(parameter(i).formats);
      if (settings().momentum != 0.0) {
        momentum_.add(i, parameter(i).formats.moment1, parameter(i));
      }
    }
    momentum_.allocate(device());
  }

  std::vector<const OptimizerState*> states() const override { return {&momentum_}; }

 protected:
  Done update(const Update& step, size_t index) override {
    const Parameter& of = parameter(index);
    if (of.updated.count() > 0) {
      ops::sgd(step.stream,
               {.weight = of.updated.value.codes,
                .gradient = of.updated.gradient.codes,
                .momentum = momentum_.of(index).codes,
                .copy = of.updated.whole ? of.copy : View{},
                .momentum_factor = settings().momentum,
                .weight_decay = of.decay ? settings().weight_decay : 0.0},
               device_control());
    }
    return {.copied = true};
  }

 private:
  void check_formats(const ParameterFormats& formats) const {
    const TensorFormat fp32;
    const bool plain = formats.value == fp32 && formats.gradient == fp32 &&
                       (settings().momentum == 0.0 || formats.moment1 == fp32);
    if (!plain) {
      throw KeyError("optimizer.name",
                     ": sgd updates fp32 weights with fp32 gradients and an fp32 momentum; choose "
                     "adamw, or a plan with fp32 weights, gradients and moments");
    }
  }

  OptimizerState momentum_{"moment1"};  // the name that checkpoints have it by
};

}  // namespace

OptimizerEntry sgd_entry() {
  return {.name = "sgd",
          .make = [](const OptimizerSite& site) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Sgd>(site);
          },
          .keys = {"optimizer.momentum"},
          .moments =
              [](const OptimizerSettings& settings) {
                return MomentRoles{.moment1 = settings.momentum != 0.0};
              },
          .normalizes_gradients = false};
}

OptimizerSettings stateless_optimizer() {
  return {.name = std::string(sgd_entry().name), .momentum = 0.0};
}

}  // namespace fp8train
