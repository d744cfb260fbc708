#include "step_time.h"

#include <algorithm>

#include "engine/roofline.h"

namespace fp8train {

StepTime step_time(const EngineSettings& settings, const DryRunStep& step, const GpuKind& gpu) {
  const StepRates rates(gpu);
  const StepModel model = model_step(step.calls, settings, rates);
  StepTime time;
  for (const OpTotal& total : model.operations) {
    (total.is_attention() ? time.attention
     : total.is_product() ? time.gemms
                          : time.others) += total.seconds;
  }
  constexpr double kGiga = 1e9;
  time.wire = (static_cast<double>(step.sent.within_node) / gpu.node_rate +
               static_cast<double>(step.sent.between_nodes) / gpu.network_rate) /
              kGiga / rates.shares.wire;
  // Gradients cross in the backward pass of the last micro-batch, weights of stage 3 in all.
  const int64_t passes =
      settings.strategy.zero_stage < 3 ? settings.step.gradient_accumulation_steps : 1;
  time.exposed =
      std::max(0.0, time.wire - model.seconds_of(StepPart::backward) / static_cast<double>(passes));
  return time;
}

}  // namespace fp8train
