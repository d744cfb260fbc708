// The plans against an oracle: a Llama in Python whose casts, scales and windows are written from
// the sources and which has no code of this program (tests/golden/make_oracle.py). Weights come
// from the oracle in every step, so that each step is a comparison of its own; scales that follow
// from earlier steps continue. Now and then a sum that differs in its last bit takes a value over
// the border between two codes, or changes the largest value of a tensor and with it all its codes:
// such a step differs. An oracle that breaks one rule must differ far more, in nearly all steps.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/dry_run.h"
#include "engine/engine.h"
#include "ops/pointwise/elementwise.h"
#include "train/oracle_model.h"

namespace fp8train::test::oracle {
namespace {

using Json = nlohmann::json;

/// The cases of both files, of models without and with experts.
const Json& fixture() {
  static const Json json = [] {
    const std::filesystem::path folder = std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "train";
    Json all = Json::parse(std::ifstream(folder / "oracle.json"));
    const Json experts = Json::parse(std::ifstream(folder / "oracle_experts.json"));
    for (const char* list : {"cases", "wrong"}) {
      all[list].insert(all[list].end(), experts.at(list).begin(), experts.at(list).end());
    }
    return all;
  }();
  return json;
}

void set_experts(const Json& of, EngineSettings& settings) {
  const bool is_sigmoid = of.at("sigmoid").get<bool>();
  settings.model.moe = {.experts = of.at("experts"),
                        .per_token = of.at("per_token"),
                        .width = of.at("width"),
                        .shared_width = of.at("shared"),
                        .groups = of.at("groups"),
                        .groups_per_token = of.at("groups_per_token"),
                        .score = is_sigmoid ? RouterScore::sigmoid : RouterScore::softmax,
                        .has_bias = of.at("biased"),
                        .scale = of.at("scale")};
  settings.step.decoder.moe = {.capacity_factor = of.at("factor"),
                               .balance_loss = of.at("balance"),
                               .z_loss = of.at("z"),
                               .bias_rate = of.at("rate")};
}

/// The gradients are read from moments, with beta1 0.
PrecisionPlan plan_of(const Json& of) {
  PlanRequest request;
  request.plan = of.at("plan");
  if (of.contains("history")) {
    request.amax_history_len = of.at("history").get<int64_t>();
  }
  if (of.contains("power_2_scale")) {
    request.power_2_scale = of.at("power_2_scale").get<bool>();
  }
  request.roles.moment1 = request.roles.moment2 = "fp32";
  for (const Role& role : plan_roles()) {
    if (of.contains("roles") && of.at("roles").contains(role.name)) {
      request.roles.*role.requested = of.at("roles").at(role.name);
    }
  }
  return resolve_plan(request);
}

EngineSettings settings_of(const Json& of) {
  const Json& shape = fixture().at("model");
  ModelConfig model;
  model.vocab_size = shape.at("vocabulary");
  model.hidden_size = shape.at("hidden");
  model.intermediate_size = shape.at("inner");
  model.num_hidden_layers = of.at("layers");
  model.num_attention_heads = shape.at("heads");
  model.num_key_value_heads = shape.at("kv_heads");
  model.max_position_embeddings = shape.at("length");
  EngineSettings settings;
  settings.model = completed(model);
  settings.plan = plan_of(of);
  settings.step = {.seq_length = shape.at("length"),
                   .micro_batch_size = shape.at("rows"),
                   .gradient_accumulation_steps = of.at("micro_batches"),
                   .seed = 0};
  settings.optimizer.betas = {0.0, 0.95};
  settings.optimizer.weight_decay = 0;
  settings.optimizer.grad_clip = 0;
  if (of.contains("experts")) {
    set_experts(of.at("experts"), settings);
  }
  return settings;
}

/// The layer of a parameter.
enum class Layer : uint8_t { linear, router, other };  ///< linear: in the plan's formats

/// What a step gives: the loss, and of each gradient the norm and the projections.
struct Step {
  double loss = 0;
  std::vector<double> norms;
  std::vector<std::vector<double>> projections;
  std::vector<Layer> layers;
  // With experts:
  ExpertLoads loads;
  std::vector<std::vector<float>> biases;  ///< that follow from the step
};

struct ForcedEngine {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine;
  bool wide;

  explicit ForcedEngine(const Json& of)
      : engine(*device, settings_of(of)), wide(of.at("wide").get<bool>()) {
    engine.reserve(dry_run_step(engine.settings(), {}).plan);
  }

  /// Gives the model the weights of a step. The optimizer has cast those of the last one: their
  /// amax must not count.
  void set_weights(uint64_t step) {
    for (const auto& parameter : engine.model().parameters().all()) {
      set_value(*device, *parameter, value(step, *parameter, wide).data());
    }
    for (const auto& slot : engine.model().scaling().slots()) {
      if (slot->role.starts_with("w") && slot->format.policy == ScalePolicy::delayed) {
        ops::fill(device->stream(), {slot->amax, DType::f32, {1}}, 0.0F);
      }
    }
    engine.weights_changed();
  }

  Step step(uint64_t index) {
    set_weights(index);
    const StepSettings& shape = engine.settings().step;
    const auto vocabulary = static_cast<uint64_t>(engine.model().config().vocab_size);
    uint64_t micro = 0;
    engine.step(
        [&] { return batch(index, micro++, shape.micro_batch_size, shape.seq_length, vocabulary); },
        static_cast<int64_t>(index), 0.0, has_experts());
    Step result;
    result.loss = engine.step_loss().mean;
    if (has_experts()) {
      result.loads = engine.expert_loads();
    }
    const auto& parameters = engine.model().parameters().all();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i]->trained) {
        result.biases.push_back(to_host_f32(*device, parameters[i]->value));
        continue;
      }
      std::vector<float> gradient =
          to_host_f32(*device, engine.optimizer().state("moment1", i).codes);
      if (wide) {
        multiply_by_spread(*parameters[i], gradient);
      }
      double sum = 0;
      for (const float g : gradient) {
        sum += double{g} * g;
      }
      result.norms.push_back(std::sqrt(sum));
      result.projections.push_back(
          projections(parameters[i]->name, gradient, fixture().at("projections")));
      const bool is_router = parameters[i]->name.ends_with(".router.weight");
      result.layers.push_back(is_router                         ? Layer::router
                              : parameters[i]->matrices.empty() ? Layer::other
                                                                : Layer::linear);
    }
    return result;
  }

  bool has_experts() const { return engine.settings().model.moe.experts > 0; }
};

/// How far a step is from the oracle's, relatively.
struct Distance {
  double loss = 0;
  double gradient = 0;  ///< of the linear layers in the plan's formats
  double router = 0;
  double others = 0;  ///< of all other parameters
};

Distance distance(const Step& ours, const Json& wanted) {
  std::map<Layer, std::pair<double, double>> sums;  // of squares, and their number
  for (size_t i = 0; i < ours.norms.size(); ++i) {
    const Json& projections = wanted.at("projections").at(i);
    auto& [squares, count] = sums[ours.layers[i]];
    for (size_t p = 0; p < projections.size(); ++p) {
      const double d = ours.projections[i][p] - projections[p].get<double>();
      // The norm of an expert without tokens is 0.
      const double relative = d == 0 ? 0 : d / ours.norms[i];
      squares += relative * relative;
      count += 1;
    }
  }
  const auto of = [&](Layer layer) {
    const auto& [squares, count] = sums[layer];
    return count == 0 ? 0 : std::sqrt(squares / count);
  };
  return {.loss = std::abs(ours.loss / wanted.at("loss").get<double>() - 1),
          .gradient = of(Layer::linear),
          .router = of(Layer::router),
          .others = of(Layer::other)};
}

/// A case of the fixture, run once.
struct Compared {
  std::vector<Step> steps;
  std::vector<Distance> distances;

  std::vector<double> sorted(double Distance::*part) const {
    std::vector<double> all;
    for (const Distance& d : distances) {
      all.push_back(d.*part);
    }
    std::sort(all.begin(), all.end());
    return all;
  }
};

/// By name.
const std::map<std::string, Compared>& compared() {
  static const std::map<std::string, Compared> all = [] {
    std::map<std::string, Compared> made;
    for (const Json& of : fixture().at("cases")) {
      Compared& here = made[of.at("name")];
      ForcedEngine forced(of);
      for (const Json& wanted : of.at("steps")) {
        here.steps.push_back(forced.step(wanted.at("step")));
        here.distances.push_back(distance(here.steps.back(), wanted));
      }
    }
    return made;
  }();
  return all;
}

constexpr double kSameLoss = 1e-6;      // some codes of the forward pass may differ
constexpr double kSameGradient = 1e-2;  // as above; smaller rules are for the wrong oracles
constexpr double kSteps = 0.8;          // the share of steps for which that holds

double share_below(const std::vector<double>& values, double limit) {
  const auto count =
      std::count_if(values.begin(), values.end(), [&](double value) { return value < limit; });
  return static_cast<double>(count) / static_cast<double>(values.size());
}

TEST_CASE("every plan has the losses and gradients of the oracle") {
  for (const std::string& plan : plan_names()) {
    CAPTURE(plan);  // else: a line in PLANS of tests/golden/oracle/plans.py
    CHECK(compared().count(plan) == 1);
  }
  std::string table = "\nloss: median, largest, steps within 1e-6; gradients: median, largest";
  for (const auto& [name, of] : compared()) {
    const std::vector<double> losses = of.sorted(&Distance::loss);
    const std::vector<double> gradients = of.sorted(&Distance::gradient);
    const std::vector<double> others = of.sorted(&Distance::others);
    const std::vector<double> routers = of.sorted(&Distance::router);
    const size_t middle = losses.size() / 2;
    const double within = share_below(losses, kSameLoss);
    table += fmt::format("\n{:34} {:.0e} {:.0e} {:4.0f} % {:.0e} {:.0e}", name, losses[middle],
                         losses.back(), 100 * within, gradients[middle], gradients.back());
    CAPTURE(name, losses, gradients, others, routers);
    CHECK(within >= kSteps);
    CHECK(losses[middle] < kSameLoss / 2);
    CHECK(share_below(gradients, kSameGradient) >= kSteps);
    CHECK(gradients[middle] < kSameGradient / 2);
    CHECK(others[middle] < kSameGradient / 2);
    CHECK(routers[middle] < kSameGradient / 2);
  }
  WARN(table);
}

TEST_CASE("loads, drops, losses of routers and biases are those of the oracle") {
  int64_t cases = 0;
  for (const Json& of : fixture().at("cases")) {
    if (!of.contains("experts")) {
      continue;
    }
    ++cases;
    const Compared& here = compared().at(of.at("name"));
    double same_loads = 0;
    double same_biases = 0;
    int64_t dropped = 0;
    for (size_t i = 0; i < here.steps.size(); ++i) {
      const Step& ours = here.steps[i];
      const Json& wanted = of.at("steps").at(i);
      const auto loads = wanted.at("loads").get<std::vector<std::vector<int64_t>>>();
      int64_t choices = 0;
      for (const std::vector<int64_t>& layer : loads) {
        choices += std::accumulate(layer.begin(), layer.end(), int64_t{0});
      }
      dropped += wanted.at("dropped").get<int64_t>();
      const double drops = ours.loads.dropped * static_cast<double>(choices);
      same_loads +=
          ours.loads.choices == loads && std::llround(drops) == wanted.at("dropped").get<int64_t>()
              ? 1
              : 0;
      same_biases += ours.biases == wanted.value("bias", std::vector<std::vector<float>>()) ? 1 : 0;
      CAPTURE(of.at("name"), i);
      const Json& losses = wanted.at("router_losses");
      CHECK(ours.loads.balance_loss.value() == Approx(losses[0].get<double>()).epsilon(1e-4));
      CHECK(ours.loads.z_loss.value_or(0.0) == Approx(losses[1].get<double>()).epsilon(1e-4));
    }
    CAPTURE(of.at("name"), same_loads, same_biases);
    const auto steps = static_cast<double>(here.steps.size());
    CHECK(same_loads >= kSteps * steps);
    CHECK(same_biases >= kSteps * steps);
    CHECK(dropped > 0);
  }
  CHECK(cases > 10);
}

TEST_CASE("an oracle that breaks one rule is found to differ") {
  std::vector<std::pair<double, std::string>> found;
  for (const Json& wrong : fixture().at("wrong")) {
    const std::string of = wrong.at("of");
    const std::string rule = wrong.at("rule");
    const Compared& right = compared().at(of);
    std::vector<double> ratios;  // to the distance from the right oracle
    for (const Json& step : wrong.at("steps")) {
      const size_t index = step.at("step");
      const Distance apart = distance(right.steps.at(index), step);
      const Distance& near = right.distances.at(index);
      // Some rules change the gradient of a router alone.
      const bool by_router = apart.router > apart.gradient;
      ratios.push_back(by_router ? apart.router / near.router : apart.gradient / near.gradient);
    }
    std::sort(ratios.begin(), ratios.end());
    CAPTURE(of, rule, ratios);
    REQUIRE(!ratios.empty());
    const double median = ratios[(ratios.size() - 1) / 2];
    CHECK(median > 3);
    found.emplace_back(median, fmt::format("{}: {}", of, rule));
  }
  std::sort(found.begin(), found.end());
  REQUIRE(!found.empty());
  WARN(fmt::format(
      "{} wrong oracles, {:.0f} times as far as the right one (the median); nearest: "
      "{}, {:.1f} times",
      found.size(), found[found.size() / 2].first, found.front().second, found.front().first));
}

}  // namespace
}  // namespace fp8train::test::oracle
