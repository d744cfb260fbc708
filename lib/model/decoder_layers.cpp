// How a Decoder makes its layers and their parameters.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/decoder.h"
#include "model/families/family.h"
#include "model/lora.h"

namespace fp8train {
namespace {

/// Of a weight that has adapters, or could have.
ParameterFormats frozen_formats(const LoraSettings& lora) {
  if (!lora.has_codes()) {
    return {.value = lora.base};
  }
  // The bytes of codes, whatever they stand for: as e4m3 under a scale that stays 1.
  TensorFormat bytes = plain(DType::e4m3);
  bytes.policy = ScalePolicy::current;
  return {.value = bytes};
}

}  // namespace

/// The plan's roles are for the weights of layers that are not exempt.
ParameterFormats Decoder::formats_of(const LinearPlan& linear) const {
  return linear.exempt_reason.empty() ? parameter_formats(plan_) : ParameterFormats{};
}

/// Values, gradients and moments of the head stay in fp32, also if its GEMMs have no scales; at
/// most there is a copy for them. An embedding that the head shares is read in fp32.
ParameterFormats Decoder::head_formats() const {
  if (config_.lora.is_on() && !tied() && config_.lora.base != TensorFormat{} &&
      plan_.activation == DType::bf16) {
    return {.value = plain(DType::bf16)};  // frozen, and read by its product alone
  }
  return {.is_master = formats_of(linear_plans_.back()).is_master};
}

Sharding Decoder::sharding_of(const Shape& whole, Split split,
                              std::span<const int64_t> pieces) const {
  Sharding all = whole_of(whole, parameters_.next_index());
  if (split == Split::none || tensor_.ranks == 1) {
    return all;
  }
  return split == Split::columns ? rows_of_pieces(all, pieces, tensor_.rank, tensor_.ranks)
                                 : columns_of(all, tensor_.rank, tensor_.ranks);
}

/// The rows of the embedding and of the head.
Sharding Decoder::vocabulary() const {
  const int64_t rows = padded_vocabulary(config_, tensor_.divisor());
  return sharding_of({rows, config_.hidden_size}, Split::columns, std::array{rows});
}

/// Returns the parameter of a norm's gain or of a bias, of which each rank has all.
Parameter Decoder::vector_of(const std::string& name, int64_t size, Init init, bool partial) const {
  Sharding all = sharding_of({size}, Split::none, {});
  all.partial = partial;
  return {
      .name = name, .sharding = std::move(all), .decay = false, .init = init, .overwritten = true};
}

Norm Decoder::make_norm(const std::string& name, const SavedFormat& input) {
  const bool centered = config_.norm == NormKind::layer_norm;
  Parameter* weight =
      parameters_.add(vector_of(name + ".weight", config_.hidden_size, Init::ones, true));
  Parameter* bias = nullptr;
  if (centered && config_.norm_bias) {
    bias = parameters_.add(vector_of(name + ".bias", config_.hidden_size, Init::zeros, true));
  }
  return {weight, bias, centered, config_.norm_eps, input};
}

Linear Decoder::make_linear(const std::string& name) {
  const auto found = linear_index_.find(name);
  check(found != linear_index_.end(), "a block's linear is one of the model's sites");
  const LinearSite& whole = linear_plans_[found->second].site;
  LinearPlan plan = linear_plans_[found->second];
  plan.site = whole.of_rank(tensor_.ranks);
  const std::vector<int64_t> pieces = whole.pieces();
  Parameter* weight = parameters_.add(
      {.name = name + ".weight",
       .sharding = sharding_of({whole.out_features, whole.in_features}, whole.split, pieces),
       .matrices = plan.site.matrices,
       .init_std = plan.site.ends_branch ? config_.family->residual_init_std(config_)
                                         : config_.initializer_range,
       .formats = config_.lora.is_on() ? frozen_formats(config_.lora) : formats_of(plan),
       .gathered = {.form = GatheredForm::operands},
       .overwritten = true});
  Parameter* offset = nullptr;
  if (plan.site.has_bias) {
    const bool summed = whole.split == Split::rows;  // y is, and the bias is behind the sum
    Parameter bias = vector_of(name + ".bias", whole.out_features, Init::zeros, summed);
    if (!summed) {
      bias.sharding = sharding_of({whole.out_features}, whole.split, pieces);
    }
    offset = parameters_.add(std::move(bias));
  }
  Linear linear(plan, weight, offset, scaling_);
  if (config_.lora.has_codes()) {
    linear.weight().set_codes(add_scales(whole), config_.lora.base);
  }
  add_adapters(whole, plan, linear);
  return linear;
}

/// Whether every linear layer of a block is exempt.
bool Decoder::is_exempt(int64_t block) const {
  return std::all_of(linear_plans_.begin(), linear_plans_.end(), [&](const LinearPlan& linear) {
    return linear.site.block != block || !linear.exempt_reason.empty();
  });
}

Mlp Decoder::make_mlp(const std::string& name, const SavedFormat& pre_activation) {
  Linear up = make_linear(name + ".up");
  Linear down = make_linear(name + ".down");
  return {config_.mlp, std::move(up), std::move(down), pre_activation};
}

Moe Decoder::make_moe(const std::string& name, const MoeSettings& settings,
                      const SavedFormat& pre_activation) {
  const MoeShape& shape = config_.moe;
  Sharding of_router = sharding_of({shape.experts, config_.hidden_size}, Split::none, {});
  of_router.partial = true;
  Moe::Router router = {.weight = parameters_.add({.name = name + ".router.weight",
                                                   .sharding = std::move(of_router),
                                                   .init_std = config_.initializer_range,
                                                   .overwritten = true}),
                        .bias = nullptr};
  if (shape.has_bias) {
    router.bias =
        parameters_.add(vector_of(name + ".router.bias", shape.experts, Init::zeros, false));
    router.bias->trained = false;
  }
  std::vector<Mlp> experts;
  experts.reserve(static_cast<size_t>(shape.experts));
  const bool present = parameters_.present();
  const size_t first = parameters_.all().size();
  for (int64_t i = 0; i < shape.experts; ++i) {
    // All ranks have the scales of all experts, which thus do not depend on the number of ranks.
    parameters_.set_present(present && i / (shape.experts / experts_.ranks) == experts_.rank);
    experts.push_back(make_mlp(fmt::format("{}.experts.{}", name, i), pre_activation));
  }
  parameters_.set_present(present);
  for (size_t i = first; experts_.ranks > 1 && i < parameters_.all().size(); ++i) {
    parameters_.all()[i]->sharding.cut = Axis::expert;
  }
  std::optional<Mlp> shared;
  if (shape.shared_width > 0) {
    shared = make_mlp(name + ".shared", pre_activation);
  }
  const bool scaled = std::ranges::all_of(
      experts, [](const Mlp& expert) { return expert.up().plan().is_scaled(); });
  const SavedFormat dispatch = {.format = scaled ? plan_.expert_dispatch : plain(plan_.activation),
                                .in_training = true,
                                .in_evaluation = plan_.evaluate_scaled};
  return {shape, settings, router, std::move(experts), std::move(shared), {experts_, dispatch}};
}

void Decoder::add_block(int64_t index, const DecoderSettings& settings) {
  const std::string layer = fmt::format("layers.{}.", index);
  const auto head_norm = [&](const char* name) -> Parameter* {
    return config_.qk_norm
               ? parameters_.add(vector_of(layer + name, config_.head_dim, Init::ones, true))
               : nullptr;
  };
  const bool exempt = is_exempt(index);
  const auto saved_input = [&](const TensorFormat& format) {
    SavedFormat input = saved_format(plan_, format);
    input.in_training = input.in_training && !exempt;
    input.in_evaluation = input.in_evaluation && !exempt;
    return input;
  };
  const Norm attention_norm = make_norm(layer + "attention_norm", saved_input(plan_.saved_norm));
  Linear qkv = make_linear(layer + "attention.qkv");
  Parameter* q_norm = head_norm("attention.q_norm.weight");
  Parameter* k_norm = head_norm("attention.k_norm.weight");
  Linear output = make_linear(layer + "attention.output");
  std::optional<AttentionScaling> scaling;
  if (plan_.attention.gemms() != Fp8Attention::none && !exempt) {
    scaling.emplace(plan_.attention, layer + "attention", plan_.evaluate_scaled, scaling_);
  }
  Attention attention({config_.num_attention_heads / tensor_.ranks,
                       config_.num_key_value_heads / tensor_.ranks, config_.head_dim},
                      std::move(qkv), std::move(output), {q_norm, k_norm, config_.norm_eps},
                      rotary_, std::move(scaling));
  const Norm mlp_norm = make_norm(layer + "mlp_norm", saved_input(plan_.saved_norm));
  const SavedFormat pre_activation = saved_input(plan_.saved_nonlinear);
  std::variant<Mlp, Moe> mlp =
      config_.has_experts(index)
          ? std::variant<Mlp, Moe>(make_moe(layer + "mlp", settings.moe, pre_activation))
          : std::variant<Mlp, Moe>(make_mlp(layer + "mlp", pre_activation));
  blocks_.emplace_back(attention_norm, std::move(attention), mlp_norm, std::move(mlp),
                       settings.recompute, encodes_residuals());
}

}  // namespace fp8train
