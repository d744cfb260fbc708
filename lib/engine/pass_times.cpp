#include "engine/pass_times.h"

#include "device/gpu_kinds.h"
#include "model/linear_sites.h"
#include "precision/linear_plan.h"

namespace fp8train {
namespace {

/// Bytes that the operations around a product move, for each byte of its x and y in the type of
/// activations. Chosen: with them passes of llama-8b and llama-405b in bf16 and FP8, with 4,096 to
/// 32,768 tokens, last as long as in model_step(), within 12 %.
constexpr double kBytesForward = 1.25, kBytesBackward = 2;

/// Seconds of a token.
class TokenTimes {
 public:
  explicit TokenTimes(const EngineSettings& settings)
      : gpu_(*find_gpu_kind("h100")), shares_(achieved_shares(gpu_)), settings_(settings) {}

  ActionTimes of_linear(const LinearPlan& linear) const {
    const LinearSite& site = linear.site;
    const double share = site.token_share;
    const double flops = 2 * share * static_cast<double>(site.weights());
    const double moved = share * static_cast<double>(size_of(linear.activation)) *
                         static_cast<double>(site.in_features + site.out_features) /
                         (gpu_.memory_rate * 1e9 * shares_.memory);
    const bool trains = !settings_.model.lora.is_on() || site.block < 0;
    return {.forward = flops / rate_of(linear.fprop) + kBytesForward * moved,
            .backward = flops / rate_of(linear.dgrad) + kBytesBackward * moved,
            .weight_gradient = trains ? flops / rate_of(linear.wgrad) : 0.0};
  }

  /// Two products of T x T x D for each head, half of them masked, and five in backward, of which
  /// one is forward's.
  ActionTimes of_attention() const {
    const ModelConfig& model = settings_.model;
    const double product = static_cast<double>(model.num_attention_heads * model.head_dim) *
                           static_cast<double>(settings_.step.seq_length);
    const Fp8Attention codes = settings_.plan.attention.gemms();
    const double forward = codes == Fp8Attention::none
                               ? shares_.attention_forward * gpu_.tera_flops_16bit
                               : shares_.attention_forward_fp8 * gpu_.tera_flops_8bit;
    const double backward = codes == Fp8Attention::both
                                ? shares_.attention_backward_fp8 * gpu_.tera_flops_8bit
                                : shares_.attention_backward * gpu_.tera_flops_16bit;
    return {.forward = 2 * product / (forward * 1e12),
            .backward = 5 * product / (backward * 1e12),
            .weight_gradient = 0};
  }

 private:
  double rate_of(const GemmPlan& product) const {
    return 1e12 * (product.a.is_scaled() ? gpu_.tera_flops_8bit * shares_.fp8
                                         : gpu_.tera_flops_16bit * shares_.bits16);
  }

  const GpuKind& gpu_;
  AchievedShares shares_;
  const EngineSettings& settings_;
};

void add(ActionTimes& sum, const ActionTimes& times, double count) {
  sum.forward += count * times.forward;
  sum.backward += count * times.backward;
  sum.weight_gradient += count * times.weight_gradient;
}

/// Whether backward computes the layer's product again: all of a half but its last one.
bool is_recomputed(const LinearSite& site, Recompute recompute) {
  return site.block >= 0 && !site.ends_branch &&
         recomputes(recompute, site.of_attention ? Recompute::attention : Recompute::mlp);
}

}  // namespace

std::vector<ActionTimes> pass_times(const EngineSettings& settings) {
  const ParallelLayout& layout = settings.strategy.layout;
  if (settings.part.has_value()) {
    return {};
  }
  const int64_t blocks = settings.model.num_hidden_layers;
  const int64_t parts = layout.pipeline * layout.virtual_stages;
  std::vector<size_t> part_of_block;
  for (int64_t part = 0; part < parts; ++part) {
    const auto [first, end] = part_of_stage(settings, static_cast<int>(part % layout.pipeline))
                                  .chunks[static_cast<size_t>(part / layout.pipeline)];
    part_of_block.resize(static_cast<size_t>(end), static_cast<size_t>(part));
  }
  const TokenTimes of_token(settings);
  const double tokens =
      static_cast<double>(settings.rows_of_rank()) / static_cast<double>(layout.tensor);
  const Recompute recompute = settings.step.decoder.recompute;
  std::vector<ActionTimes> times(static_cast<size_t>(parts), ActionTimes{0, 0, 0});
  for (const LinearPlan& linear : plan_linears(settings.plan, linear_sites(settings.model))) {
    ActionTimes one = of_token.of_linear(linear);
    if (linear.site.block < 0) {  // the head makes all of its gradients in the backward pass
      one = {.forward = 0,
             .backward = one.forward + one.backward + one.weight_gradient,
             .weight_gradient = 0};
    } else if (is_recomputed(linear.site, recompute)) {
      one.backward += one.forward;
    }
    add(linear.site.block < 0 ? times.back()
                              : times[part_of_block[static_cast<size_t>(linear.site.block)]],
        one, tokens);
  }
  ActionTimes attention = of_token.of_attention();
  if (recomputes(recompute, Recompute::attention)) {
    attention.backward += attention.forward;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    add(times[part_of_block[static_cast<size_t>(block)]], attention, tokens);
  }
  return times;
}

PipelineSchedule schedule_of(const EngineSettings& settings) {
  const ParallelLayout& layout = settings.strategy.layout;
  if (!layout.given_schedule.empty()) {
    return layout.given_schedule;
  }
  const PipelineShape shape = layout.pipeline_shape(settings.step.gradient_accumulation_steps);
  return make_schedule(layout.schedule, shape,
                       layout.is_periodic() ? std::vector<ActionTimes>() : pass_times(settings));
}

}  // namespace fp8train
