// One rank: nothing is exchanged, and a step can be recorded.

#include "parallel/strategies.h"

namespace fp8train {
namespace {

class Single final : public Strategy {
 public:
  using Strategy::Strategy;

  StoreSharing sharing() const override { return {}; }
  void attach(Device& device, ParameterStore& parameters, const View& /*amax*/) override {
    set_store(device, parameters);
  }
  bool rounds_gradients() const override { return false; }
  bool can_be_recorded() const override { return true; }
  GradientListener* begin_exchange() override { return nullptr; }
  void finish_exchange(double* /*squared_norm*/) override {}
  RankCombiner* combiner() override { return nullptr; }
  void values_changed() override {}
  void update_sum_scales(Stream /*stream*/, const Optimizer& /*optimizer*/) override {}
  void combine_amax(Stream /*stream*/, const View& /*values*/) override {}
  ParameterGatherer* gatherer() override { return nullptr; }
};

}  // namespace

std::unique_ptr<Strategy> make_single(const StrategySite& site) {
  return std::make_unique<Single>(site);
}

}  // namespace fp8train
