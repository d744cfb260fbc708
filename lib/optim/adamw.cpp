#include "optim/adamw.h"

#include "base/error.h"
#include "ops/pointwise/elementwise.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

/// Random bits are drawn for four elements at a time.
void check_part(const Parameter& parameter) {
  const ParameterFormats& formats = parameter.formats;
  bool draws = false;
  for (const TensorFormat& format : {formats.value, formats.moment1, formats.moment2}) {
    draws = draws || format.rounding == Rounding::stochastic;
  }
  if (draws && !parameter.sharding.elements().by_fours) {
    throw ConfigError(parameter.name +
                      ": stochastic rounding needs parts whose rows and runs of rows begin at a "
                      "multiple of 4 elements, which those of ranks do not; take fewer ranks or "
                      "round to nearest");
  }
}

}  // namespace

AdamW::AdamW(const OptimizerSite& site) : AdamW(site, [](const Parameter&) { return true; }) {}

AdamW::AdamW(const OptimizerSite& site, const std::function<bool(const Parameter&)>& updates)
    : Optimizer(site) {
  for (size_t i = 0; i < parameters().all().size(); ++i) {
    if (updates(parameter(i))) {
      if (parameter(i).trained) {
        check_part(parameter(i));
      }
      moment1_.add(i, parameter(i).formats.moment1, parameter(i));
      moment2_.add(i, parameter(i).formats.moment2, parameter(i));
    }
  }
  moment1_.allocate(device());
  moment2_.allocate(device());
}

std::vector<const OptimizerState*> AdamW::states() const {
  return {&moment1_, &moment2_};
}

ops::AdamW AdamW::call(size_t index, const ops::QuantizeSink& cast) const {
  const Parameter& of = parameter(index);
  return {.weight = of.updated.value,
          .gradient = of.updated.gradient,
          .moment1 = moment1_.of(index),
          .moment2 = moment2_.of(index),
          .copy = of.updated.whole ? of.copy : View{},
          .beta1 = settings().betas[0],
          .beta2 = settings().betas[1],
          .eps = settings().eps,
          .weight_decay = of.decay ? settings().weight_decay : 0.0,
          .cast = cast,
          .rounding = {.seed = seed(),
                       .tensor = of.sharding.index,
                       .first = of.updated.first,
                       .elements = of.sharding.elements()},
          .amax_known = amax_is_known(),
          .gradient_read_as = read_as(of.updated.gradient.format, of.formats.gradient_wire)};
}

void AdamW::find_amax(Stream stream) {
  for (size_t i = 0; i < parameters().all().size(); ++i) {
    if (parameter(i).updated.count() > 0 && !moment1_.of(i).empty()) {
      ops::QuantizeSink cast = parameter(i).cast;
      cast.statistics = nullptr;
      ops::adamw_amax(stream, call(i, cast), device_control());
    }
  }
}

/// One operation updates the weight, copies and casts it.
Optimizer::Done AdamW::update(const Update& step, size_t index) {
  const ops::QuantizeSink cast = cast_of(parameter(index), step);
  if (!cast.empty() && cast.out.empty()) {
    ops::fill(step.stream, {cast.amax, DType::f32, {1}}, 0.0F);
  }
  ops::adamw(step.stream, call(index, cast), device_control());
  return {.copied = true, .cast = true};
}

OptimizerEntry adamw_entry() {
  return {.name = "adamw",
          .make = [](const OptimizerSite& site) -> std::unique_ptr<Optimizer> {
            return std::make_unique<AdamW>(site);
          },
          .keys = {"optimizer.betas", "optimizer.eps", "precision.moment1", "precision.moment2"},
          .moments =
              [](const OptimizerSettings&) {
                return MomentRoles{true, true};
              }};
}

}  // namespace fp8train
