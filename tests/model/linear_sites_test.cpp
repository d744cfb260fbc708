// One enumeration of a model's linear layers: what a Decoder makes, and what is counted without
// one, agree with it.

#include "model/linear_sites.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "base/key_error.h"
#include "model/decoder.h"
#include "model/tensor_share.h"
#include "support/small_model.h"

using namespace fp8train;

namespace {

ModelConfig with_biases() {
  ModelConfig config = test::small_llama_model();
  config.norm = NormKind::layer_norm;
  config.mlp = MlpKind::gelu;
  config.positions = PositionKind::learned;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  return config;
}

ModelConfig with_head_norms() {
  ModelConfig config = test::small_llama_model();
  config.head_dim = 32;
  config.qk_norm = true;
  config.qkv_bias = true;
  return config;
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> configs;
  for (ModelConfig config : {test::small_llama_model(), with_biases(), with_head_norms()}) {
    for (const bool tied : {false, true}) {
      config.tie_word_embeddings = tied;
      configs.push_back(completed(config));
    }
  }
  return configs;
}

}  // namespace

TEST_CASE("a decoder makes the linear layers of the enumeration, in its order") {
  for (const ModelConfig& config : models()) {
    const auto device = make_device(DeviceKind::meta);
    Decoder model(*device, config, plan_named("bf16"), {});
    std::vector<std::string> made;
    std::vector<std::string> of_first_unit;
    for (size_t unit = 0; unit < model.units(); ++unit) {
      model.for_each_linear(unit, [&](const Linear& linear) {
        (unit == 0 ? of_first_unit : made).push_back(linear.plan().site.name);
      });
    }
    CHECK(of_first_unit.size() == (config.tie_word_embeddings ? 1 : 0));
    made.insert(made.end(), of_first_unit.begin(), of_first_unit.end());  // a tied head
    std::vector<std::string> listed;
    for (const LinearSite& site : linear_sites(config)) {
      listed.push_back(site.name);
    }
    CHECK(made == listed);
    CHECK(listed.size() == 9);
  }
}

TEST_CASE("as many parameters are counted as a decoder has") {
  for (const ModelConfig& config : models()) {
    const auto device = make_device(DeviceKind::meta);
    Decoder model(*device, config, plan_named("bf16"), {});
    int64_t made = 0;
    for (const auto& parameter : model.parameters().all()) {
      made += parameter->used_rows * (parameter->shape.count() / parameter->shape[0]);
    }
    CHECK(parameter_count(config) == made);
  }
}

TEST_CASE("the matrices that are stacked in a weight are all of its rows") {
  for (const ModelConfig& config : models()) {
    for_each_linear(config, [&](const LinearSite& site) {
      int64_t rows = 0;
      for (const int64_t matrix : site.matrices) {
        rows += matrix;
      }
      CAPTURE(site.name);
      CHECK(rows == (site.is_head ? 0 : site.out_features));
    });
  }
}

TEST_CASE("ranks that share layers have parts of every layer but experts") {
  ModelConfig config = test::small_llama_model();
  config.num_key_value_heads = config.num_attention_heads;
  config = completed(config);
  std::vector<LinearPlan> plans = plan_linears(plan_named("te-current"), linear_sites(config));
  const TensorShare two = {.rank = 0, .ranks = 2};
  check_tensor_share(config, plans, two);
  LinearSite& site = plans[1].site;
  site.split = Split::none;
  CHECK_THROWS_AS(check_tensor_share(config, plans, two), KeyError);
  check_tensor_share(config, plans, {});
  site.name = "layers.0.mlp.experts.1.up";
  check_tensor_share(config, plans, two);
}
