#include "optim/optimizer.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "nn/linear.h"
#include "numeric/convert.h"
#include "optim/registry.h"
#include "support/parameters.h"

using namespace fp8train;

namespace {

struct Fixture {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  Parameter* weight = store.add({.name = "w", .shape = {2, 3}, .init = Init::ones});
  Parameter* norm = store.add({.name = "n", .shape = {3}, .decay = false, .init = Init::ones});
  Arena scratch{*device, MemoryCategory::workspace};

  Fixture() {
    store.allocate(*device);
    store.initialize(*device, 1);
    scratch.reserve(1 << 16);
  }
  void set_gradient(float value) {
    for (const View& gradients : store.gradients().fp32()) {
      fill_zero(*device, gradients);
    }
    for (int i = 0; i < 6; ++i) {
      weight->gradient.as<float>()[i] = value;
    }
    for (int i = 0; i < 3; ++i) {
      norm->gradient.as<float>()[i] = value;
    }
  }
};

}  // namespace

TEST_CASE("weight decay spares norms, and the gradient norm is that of all parameters") {
  Fixture f;
  OptimizerSettings settings;
  settings.weight_decay = 0.5;
  settings.grad_clip = 0.0;
  const std::unique_ptr<Optimizer> made =
      make_optimizer({.device = f.device.get(), .parameters = &f.store, .settings = settings});
  Optimizer& optimizer = *made;
  optimizer.set_learning_rate(0.1F);
  f.set_gradient(2.0F);
  optimizer.step(f.device->stream(), f.scratch);
  CHECK(optimizer.control().gradient_norm == Approx(6.0));
  // First AdamW step: the update is lr * sign(g) up to eps.
  CHECK(f.weight->value.as<float>()[0] == Approx(1.0 - 0.1 * 0.5 - 0.1));
  CHECK(f.norm->value.as<float>()[0] == Approx(1.0 - 0.1));
}

TEST_CASE("gradients are rounded to their wire as they are read, or before") {
  for (const OptimizerEntry& entry : optimizers()) {
    const auto weights_after = [&](bool optimizer_rounds, float value) {
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      ParameterStore store;
      ParameterFormats formats;
      formats.gradient_wire.dtype = DType::bf16;
      // Lanes of their own: one has a wire, the other none.
      Parameter* rounded =
          store.add({.name = "w", .shape = {5}, .init = Init::ones, .formats = formats});
      Parameter* exact = store.add({.name = "n", .shape = {5}, .init = Init::ones});
      Arena scratch{*device, MemoryCategory::workspace};
      store.allocate(*device);
      store.initialize(*device, 1);
      scratch.reserve(1 << 16);
      for (int i = 0; i < 5; ++i) {
        rounded->gradient.as<float>()[i] = value * static_cast<float>(i + 1);
        exact->gradient.as<float>()[i] = 1.001F * static_cast<float>(i + 1);
      }
      OptimizerSettings settings;
      settings.name = entry.name;
      settings.grad_clip = 0.5;
      const std::unique_ptr<Optimizer> made =
          make_optimizer({.device = device.get(), .parameters = &store, .settings = settings});
      Optimizer& optimizer = *made;
      optimizer.set_rounds_gradients(optimizer_rounds);
      optimizer.set_learning_rate(0.1F);
      optimizer.step(device->stream(), scratch);
      std::vector<float> result = test::value_on_host(*device, *rounded);
      const std::vector<float> other = test::value_on_host(*device, *exact);
      result.insert(result.end(), other.begin(), other.end());
      result.push_back(optimizer.control().gradient_norm);
      return result;
    };
    CAPTURE(entry.name);
    // bf16 keeps eight bits: of 1 + 2^-12 and its multiples, 1 and its.
    const float value = 1.0F + 0x1p-12F;
    CHECK(weights_after(true, value) == weights_after(false, 1.0F));
    CHECK(weights_after(false, value) != weights_after(false, 1.0F));
  }
}

TEST_CASE("a gradient that is not finite skips the step and leaves everything as it was") {
  Fixture f;
  const std::unique_ptr<Optimizer> made =
      make_optimizer({.device = f.device.get(), .parameters = &f.store});
  Optimizer& optimizer = *made;
  optimizer.set_learning_rate(0.1F);
  f.set_gradient(1.0F);
  optimizer.step(f.device->stream(), f.scratch);
  const std::vector<float> before = test::values_of(*f.device, f.store);
  const std::vector<float> moments = to_host_f32(*f.device, optimizer.state("moment1", 0).codes);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    f.set_gradient(1.0F);
    f.weight->gradient.as<float>()[4] = bad;
    optimizer.step(f.device->stream(), f.scratch);
    CHECK(optimizer.control().skip != 0);
  }
  CHECK(test::values_of(*f.device, f.store) == before);
  CHECK(to_host_f32(*f.device, optimizer.state("moment1", 0).codes) == moments);
  CHECK(optimizer.control().skipped_steps == 2);
  CHECK(optimizer.control().applied_steps == 1);
}

TEST_CASE("dynamic loss scaling halves on overflow and ignores the scale otherwise") {
  Fixture f;
  OptimizerSettings settings;
  settings.grad_clip = 0.0;
  const std::unique_ptr<Optimizer> made = make_optimizer({.device = f.device.get(),
                                                          .parameters = &f.store,
                                                          .settings = settings,
                                                          .dynamic_loss_scaling = true});
  Optimizer& optimizer = *made;
  optimizer.set_learning_rate(0.1F);
  const float scale = *optimizer.loss_scale();
  CHECK(scale == 65536.0F);
  f.set_gradient(2.0F * scale);
  optimizer.step(f.device->stream(), f.scratch);
  CHECK(optimizer.control().gradient_norm == Approx(6.0));
  f.set_gradient(std::numeric_limits<float>::infinity());
  optimizer.step(f.device->stream(), f.scratch);
  CHECK(*optimizer.loss_scale() == scale / 2);
}

TEST_CASE("an unknown optimizer is refused") {
  Fixture f;
  OptimizerSettings settings;
  settings.name = "no-such-rule";
  CHECK_THROWS_WITH(
      make_optimizer({.device = f.device.get(), .parameters = &f.store, .settings = settings}),
      Catch::Contains("'no-such-rule' is not one of adamw, sgd"));
}

TEST_CASE("an optimizer's entry says which keys mean something to it") {
  const auto reads = [](const char* name, const char* key) {
    return optimizer_named(name).reads(key);
  };
  for (const OptimizerEntry& entry : optimizers()) {
    CHECK(entry.reads("optimizer.lr"));  // of all
    CHECK(entry.reads("optimizer.weight_decay"));
  }
  CHECK(reads("adamw", "optimizer.betas"));
  CHECK_FALSE(reads("adamw", "optimizer.momentum"));
  CHECK_FALSE(reads("sgd", "optimizer.betas"));
  CHECK_FALSE(reads("sgd", "precision.moment1"));
  CHECK(reads("muon", "optimizer.betas"));
  CHECK(reads("muon", "optimizer.muon.scale"));
  CHECK_FALSE(reads("sgd", "optimizer.muon.scale"));
  CHECK(optimizer_named("muon").whole_cost != nullptr);
  OptimizerSettings still = {.name = "sgd", .momentum = 0.0};
  CHECK_FALSE(optimizer_named("sgd").moments(still).moment1);
}

TEST_CASE("states of an optimizer have the names that checkpoints have") {
  const auto names = [](const char* name) {
    Fixture f;
    const std::unique_ptr<Optimizer> made = make_optimizer(
        {.device = f.device.get(), .parameters = &f.store, .settings = {.name = name}});
    std::vector<std::string> all;
    for (const OptimizerState* state : made->states()) {
      all.push_back(state->name());
    }
    CHECK(made->state("no such state", 0).empty());
    return all;
  };
  for (const OptimizerEntry& entry : optimizers()) {
    std::vector<std::string> all = names(std::string(entry.name).c_str());
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  }
  CHECK(names("adamw") == std::vector<std::string>{"moment1", "moment2"});
  CHECK(names("sgd") == std::vector<std::string>{"moment1"});
  CHECK(names("muon") == std::vector<std::string>{"moment1", "moment2", "momentum"});
}

namespace {

/// A linear layer whose weight an optimizer updates.
struct TrainedLinear {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  ScalingState scaling;
  Parameter* weight =
      store.add({.name = "w", .shape = {32, 48}, .matrices = {32}, .init_std = 0.5F});
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  Linear linear;

  explicit TrainedLinear(const char* plan)
      : linear(plan_linears(plan_named(plan), {{"layer", 48, 32, 0, false}}).front(), weight,
               nullptr, scaling) {
    store.allocate(*device);
    scaling.allocate(*device);
    linear.weight().allocate(*device, store);
    saved.reserve(1 << 20);
    scratch.reserve(1 << 20);
    store.initialize(*device, 1);
    linear.weight().refresh(context(), LinearWeight::Refresh::all);
  }
  StepContext context() {
    return {
        .device = device.get(), .stream = device->stream(), .saved = &saved, .scratch = &scratch};
  }
  std::vector<float> forward() {
    ArenaScope scope(scratch);
    const View x = allocate(scratch, DType::bf16, {48, 48});
    for (int64_t i = 0; i < x.count(); ++i) {
      x.as<bf16>()[i] = encode<bf16>(i % 49 == 0 ? 1.0F : 0.0F);  // the unit matrix
    }
    const View y = allocate(scratch, DType::bf16, {48, 32});
    Linear::Saved stored;
    linear.forward(context(), x, y, stored);
    std::vector<float> values;
    for (int64_t i = 0; i < y.count(); ++i) {
      values.push_back(decode(y.as<bf16>()[i]));
    }
    return values;
  }
};

/// An optimizer that does its arithmetic and nothing else, with a state of `format`.
class Plain : public Optimizer {
 public:
  Plain(const OptimizerSite& site, const TensorFormat& format) : Optimizer(site) {
    for (size_t i = 0; i < parameters().all().size(); ++i) {
      state_.add(i, format, parameter(i));
    }
    state_.allocate(device());
  }
  std::vector<const OptimizerState*> states() const override { return {&state_}; }

 protected:
  Done update(const Update& step, size_t index) override {
    ops::sgd(step.stream,
             {.weight = parameter(index).updated.value.codes,
              .gradient = parameter(index).updated.gradient.codes,
              .momentum = {},
              .copy = {},
              .momentum_factor = 0.0,
              .weight_decay = 0.0},
             device_control());
    return {};
  }

 private:
  OptimizerState state_{"state"};
};

std::unique_ptr<Optimizer> make_plain(const OptimizerSite& site) {
  return std::make_unique<Plain>(site, TensorFormat{});
}

class OneRank : public RankCombiner {
  void sum(double* /*value*/) override {}
  void largest(const View& /*values*/) override {}
};

}  // namespace

TEST_CASE("an optimizer that does not find the amax of what ranks share is refused") {
  Fixture f;
  const OptimizerSite site = {.device = f.device.get(), .parameters = &f.store};
  OneRank combiner;
  f.set_gradient(1.0F);
  const auto step = [&](const TensorFormat& format) {
    Plain(site, format).step(f.device->stream(), f.scratch, false, &combiner);
  };
  step({});
  TensorFormat scaled = {.dtype = DType::e4m3};
  scaled.policy = ScalePolicy::current;
  scaled.block = per::group(128);
  step(scaled);
  scaled.block = per::tensor;
  CHECK_THROWS_WITH(step(scaled), Catch::Contains("no find_amax()"));
}

TEST_CASE("the weight that the optimizer casts is the one that the layer would cast") {
  std::vector<std::unique_ptr<Optimizer> (*)(const OptimizerSite&)> makers = {make_plain};
  for (const OptimizerEntry& entry : optimizers()) {
    makers.push_back(entry.make);
  }
  for (const char* plan : {"bf16", "te-delayed", "te-current"}) {
    for (size_t maker = 0; maker < makers.size(); ++maker) {
      CAPTURE(plan, maker);
      TrainedLinear f(plan);
      const std::unique_ptr<Optimizer> made =
          makers[maker]({.device = f.device.get(), .parameters = &f.store});
      Optimizer& optimizer = *made;
      optimizer.set_learning_rate(0.25);
      const std::vector<float> before = f.forward();
      float* gradient = f.weight->gradient.as<float>();
      for (int64_t i = 0; i < f.weight->gradient.count(); ++i) {
        gradient[i] = static_cast<float>(i % 7) - 3.0F;
      }
      optimizer.step(f.device->stream(), f.scratch);
      f.linear.weight().refresh(f.context(), LinearWeight::Refresh::after_update);
      const std::vector<float> by_optimizer = f.forward();
      f.linear.weight().refresh(f.context(), LinearWeight::Refresh::all);
      CHECK(by_optimizer == f.forward());
      CHECK(by_optimizer != before);
    }
  }
}
