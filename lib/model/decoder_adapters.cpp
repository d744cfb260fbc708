// The parameters that a model gets in addition to its own: adapters of its linear layers, and the
// scales of frozen weights that are codes; and which parameters are frozen.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/key_error.h"
#include "base/math.h"
#include "base/text.h"
#include "model/decoder.h"
#include "model/lora.h"

namespace fp8train {
namespace {

/// Throws unless all experts of a layer have the same parameters, and the same of these are
/// trained: ranks exchange gradients in one order.
void check_experts_alike(const std::vector<std::string>& names,
                         const std::function<bool(const std::string&)>& trains, int64_t experts) {
  constexpr std::string_view kExperts = ".experts.";
  std::map<std::string, int64_t> trained;  // by the name without the number of the expert
  for (const std::string& name : names) {
    const size_t begin = name.find(kExperts);
    if (begin != std::string::npos && trains(name)) {
      const size_t number = begin + kExperts.size();
      ++trained[name.substr(0, number) + "*" + name.substr(name.find('.', number))];
    }
  }
  for (const auto& [name, count] : trained) {
    if (count != experts) {
      throw KeyError(
          "parallelism.expert",
          fmt::format(
              ": {} is trained in {} of {} experts, and ranks with different ones "
              "train "
              "it in all or none; change the patterns of training.frozen or model.lora.targets",
              name, count, experts));
    }
  }
}

/// Of a base that is drawn, about the largest of many normal values.
constexpr float kInitialAmax = 4.0F;

/// Returns the block of a parameter, or -1 before the blocks and their number after them.
int64_t block_of(const std::string& parameter, const ModelConfig& config) {
  const std::string_view prefix = "layers.";
  if (parameter.starts_with(prefix)) {
    return *whole_number<int64_t>(split(parameter.substr(prefix.size()), '.').front());
  }
  const auto is_of = [&](std::string_view first, std::string_view second) {
    return parameter.starts_with(first) || parameter.starts_with(second);
  };
  if (is_of("embedding.", "positions.")) return -1;
  if (is_of("final_norm.", "head.")) return config.num_hidden_layers;
  throw InternalError(
      fmt::format("block_of: {} is neither in a block nor before or after them", parameter));
}

/// By the name: initial values depend neither on the other adapters nor on the form of the base.
uint64_t adapter_index(const std::string& name) {
  constexpr uint64_t kFirst = uint64_t{1} << 30;  // after all of the model's own
  return kFirst + content_hash(name.data(), name.size()) % kFirst;
}

}  // namespace

void Decoder::freeze(const std::vector<std::string>& patterns) {
  lora_pieces(config_);                                        // targets that match nothing throw
  const std::vector<std::string> names = parameters_.names();  // of all stages
  const auto trains = [&](const std::string& name) {
    return (!config_.lora.is_on() || is_adapter(name)) &&
           std::ranges::none_of(
               patterns, [&](const std::string& pattern) { return glob_match(pattern, name); });
  };
  for (const auto& parameter : parameters_.all()) {
    const bool is_bias = !parameter->trained;  // of a router, which moves without a gradient
    if (is_bias && !trains(parameter->name)) {
      frozen_biases_.push_back(parameter.get());
    }
    parameter->trained = !is_bias && trains(parameter->name);
  }
  for (const std::string& pattern : patterns) {
    check_pattern("training.frozen", pattern, "parameter", names);
  }
  if (experts_.ranks > 1) {
    check_experts_alike(names, trains, config_.moe.experts);
  }
  int64_t first = std::numeric_limits<int64_t>::max();  // block, in which something trains
  for (const std::string& name : names) {
    first = trains(name) ? std::min(first, block_of(name, config_)) : first;
    if (!trains(name) || name.ends_with(".router.bias")) {
      frozen_.push_back(name);
    }
  }
  if (first > config_.num_hidden_layers) {
    throw KeyError("training.frozen", ": its patterns match all parameters; leave some to train");
  }
  const int64_t own = part_.blocks();
  const auto block_of_unit = [&](int64_t unit) {
    return unit == 0 ? -1 : unit > own ? config_.num_hidden_layers : part_.block_at(unit - 1);
  };
  int64_t unit = 0;
  while (unit <= own && block_of_unit(unit) < first) {
    ++unit;
  }
  first_trained_ = static_cast<size_t>(unit);
}

/// The scales of a weight that is codes, one for each row or block.
Parameter* Decoder::add_scales(const LinearSite& whole) {
  const bool by_row = config_.lora.base.block == per::row;
  const int64_t block = by_row ? 1 : config_.lora.base.block.rows;
  std::vector<int64_t> pieces = whole.pieces();
  const bool cuts = tensor_.divisor() > 1 || pieces.size() > 1;
  for (int64_t& piece : pieces) {
    const int64_t parts = whole.split == Split::columns ? tensor_.divisor() : 1;
    if (cuts && piece % (block * parts) != 0) {
      throw KeyError(
          "model.lora.base",
          fmt::format(
              ": {} has a part of {} rows, which are no blocks of 128; take bf16, or '{} row'",
              whole.name, piece / parts, name_of(config_.lora.base.dtype)));
    }
    piece = ceil_div(piece, block);
  }
  const int64_t across = by_row ? 1 : ceil_div(whole.in_features, block);
  const int64_t columns = by_row || whole.split != Split::rows ? 1 : tensor_.divisor();
  if (columns > 1 && whole.in_features % (block * columns) != 0) {
    throw KeyError(
        "model.lora.base",
        fmt::format(": {} has a part of {} columns, which are no blocks of 128; take bf16",
                    whole.name, whole.in_features / columns));
  }
  const Shape shape = {std::accumulate(pieces.begin(), pieces.end(), int64_t{0}), across};
  Sharding scales = sharding_of(
      shape, columns == 1 && whole.split == Split::rows ? Split::none : whole.split, pieces);
  scales.index = parameters_.next_added_index();
  return parameters_.add({.name = whole.name + kCodeScales,
                          .sharding = std::move(scales),
                          .decay = false,
                          .init = Init::ones,
                          .init_std = kInitialAmax * config_.initializer_range / kMaxE4M3,
                          .is_added = true});
}

/// `whole`: the layer as one rank has it.
void Decoder::add_adapters(const LinearSite& whole, const LinearPlan& plan, Linear& linear) {
  const std::vector<int64_t> pieces = whole.pieces();
  for (const LoraPiece& piece : lora_pieces(config_, whole)) {
    if (plan.is_smoothed()) {
      throw KeyError("model.lora.targets",
                     fmt::format(": {} has an input that the plan {} smooths, which an adapter "
                                 "does not read; leave it out",
                                 piece.module, plan_.name));
    }
    const TensorFormat type = plain(plan_.activation);
    LinearPlan inner = {.activation = plan_.activation};
    inner.fprop = inner.dgrad = inner.wgrad = {.a = type, .b = type};
    inner.site = {.in_features = piece.columns,
                  .out_features = config_.lora.rank,
                  .block = whole.block,
                  .split = whole.split == Split::rows ? Split::rows : Split::none,
                  .token_share = whole.token_share};
    LinearPlan outer = inner;
    outer.site.in_features = config_.lora.rank;
    outer.site.out_features = piece.rows;
    outer.site.split = whole.split == Split::columns ? Split::columns : Split::none;
    // As kaiming_uniform_(a=sqrt(5)) of torch: 1 / sqrt(fan-in), of the whole.
    const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(piece.columns)));
    Linear a = make_adapter(
        inner, {.name = piece.name + ".lora_A", .init = Init::uniform, .init_std = bound});
    int64_t begin = 0;
    for (const int64_t rows : pieces) {
      if (begin >= piece.begin && begin + rows <= piece.begin + piece.rows) {
        outer.site.matrices.push_back(rows);
      }
      begin += rows;
    }
    Linear b = make_adapter(outer, {.name = piece.name + ".lora_B", .init = Init::zeros});
    const int64_t first = whole.split == Split::columns ? piece.begin / tensor_.ranks : piece.begin;
    linear.add_adapter(std::move(a), std::move(b), first, static_cast<float>(config_.lora.scale()));
  }
}

Linear Decoder::make_adapter(LinearPlan plan, Parameter parameter) {
  const LinearSite whole = plan.site;
  parameter.is_added = true;
  parameter.sharding =
      sharding_of({whole.out_features, whole.in_features}, whole.split, whole.matrices);
  parameter.sharding.index = adapter_index(parameter.name);
  parameter.sharding.partial = whole.split == Split::none;
  parameter.gathered = {.form = GatheredForm::operands};
  parameter.overwritten = true;
  plan.site.name = parameter.name;
  plan.site = plan.site.of_rank(tensor_.ranks);
  return {plan, parameters_.add(std::move(parameter)), nullptr, scaling_};
}

}  // namespace fp8train
