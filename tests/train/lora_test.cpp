// Adapters (model.lora): they compute what peft computes, train alone while the base keeps its
// bits, in every layout, and are read and merged as peft does. The fixtures come from
// tests/golden/make_lora.py.

#include <catch2/catch.hpp>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/safetensors/adapters.h"
#include "model/lora.h"
#include "support/small_gpt2.h"
#include "support/temp_dir.h"
#include "train/golden_model.h"
#include "train/one_rank.h"
#include "train/rank_results.h"

using namespace fp8train;
using test::distance;
using test::LoadedEngine;

namespace {

namespace fs = std::filesystem;

struct PeftFixture : test::GoldenModel {
  fs::path base;
  Batch batch = batch_of_rows();

  explicit PeftFixture(const std::string& name)
      : GoldenModel("lora/" + name), base(fs::path(FP8TRAIN_GOLDEN_DIR) / name) {}

  EngineSettings settings(const std::string& plan, bool adapted = true) const {
    EngineSettings settings = test::golden_settings(base, plan, batch);
    if (adapted) {
      settings.model.lora = read_adapter_folder(folder).lora;
    }
    return settings;
  }

  /// The adapter's folder with the base where it is here. `flips`: fan_in_fan_out does not fit to
  /// the modules, which peft corrects.
  void copy_to(const fs::path& to, bool flips = false) const {
    auto config = nlohmann::json::parse(std::ifstream(folder / kAdapterConfig));
    config["base_model_name_or_path"] = base.string();
    config["fan_in_fan_out"] = config["fan_in_fan_out"].get<bool>() != flips;
    std::ofstream(to / kAdapterConfig) << config.dump();
    fs::copy_file(folder / kAdapterFile, to / kAdapterFile);
  }
};

EngineSettings adapted(EngineSettings settings) {
  settings.model.lora = {.rank = 4, .alpha = 8, .targets = {"all-linear"}};
  return settings;
}

SmallRun run_of(const EngineSettings& settings, int ranks) {
  return {.engine = settings, .ranks = Topology::blocks(ranks, ranks)};
}

std::string difference_of(const SmallRun& one, const SmallRun& other) {
  const auto found = first_difference(train_in_threads(one), train_in_threads(other),
                                      expected_nearness(one, other));
  return found
             ? found->tensor + (" of " + found->parameter + ": ") + std::to_string(found->relative)
             : "";
}

}  // namespace

TEST_CASE("loss, logits and gradients of adapters are those of peft") {
  const std::string name = GENERATE("tiny-llama", "tiny-gpt2");
  CAPTURE(name);
  const PeftFixture fixture(name);
  EngineSettings settings = fixture.settings("fp32");
  settings.step.decoder.recompute = GENERATE(Recompute::none, Recompute::block);
  LoadedEngine loaded(TensorSource(fixture.base), settings, fixture.folder);
  const std::vector<int32_t> first(fixture.batch.tokens.begin(),
                                   fixture.batch.tokens.begin() + fixture.batch.columns);
  CHECK(distance(loaded.logits(first), fixture.logits()) < 1e-5);
  loaded.engine.step([&]() -> const Batch& { return fixture.batch; }, 0, 0.0F, false);
  CHECK(loaded.engine.step_loss().mean ==
        Approx(fixture.numbers.at("loss").get<double>()).epsilon(1e-6));
  size_t compared = 0;
  for (const auto& parameter : loaded.engine.model().parameters().all()) {
    CAPTURE(parameter->name);
    CHECK(parameter->trained == is_adapter(parameter->name));
    CHECK(parameter->gradient.empty() != parameter->trained);
    if (parameter->trained) {
      const std::string tensor = hf_pieces(settings.model, parameter->name).front().name;
      const SafetensorsEntry* const entry = fixture.expected.find("grad." + tensor);
      REQUIRE(entry != nullptr);
      CHECK(distance(to_host_f32(*loaded.device, parameter->gradient),
                     fixture.expected.read_f32(*entry)) < 1e-5);
      ++compared;
    }
  }
  CHECK(compared == (name == "tiny-llama" ? 16 : 4));
}

TEST_CASE("a folder of adapters is read as the model that peft merges, and computes the same") {
  const std::string name = GENERATE("tiny-llama", "tiny-gpt2");
  CAPTURE(name);
  const PeftFixture fixture(name);
  const test::TempDir dir;
  fixture.copy_to(dir.path(), GENERATE(false, true));
  const TensorSource base(fixture.base);
  const TensorSource merged(dir.path());
  size_t changed = 0;
  for (const std::string& tensor : base.names()) {
    CAPTURE(tensor);
    const std::vector<int64_t>& shape = base.find(tensor)->shape;
    const SafetensorsEntry* const expected = fixture.expected.find("merged." + tensor);
    const std::vector<float> values = merged.read_f32(tensor, shape);
    if (expected == nullptr) {
      CHECK(values == base.read_f32(tensor, shape));
    } else {
      CHECK(distance(values, fixture.expected.read_f32(*expected)) < 1e-6);
      const std::vector<float> part = merged.read_f32(tensor, shape, 33, 40);
      CHECK(part == std::vector<float>(values.begin() + 33, values.begin() + 73));
      ++changed;
    }
  }
  CHECK(changed == (name == "tiny-llama" ? 8 : 2));
  LoadedEngine of_adapters(base, fixture.settings("fp32"), fixture.folder);
  LoadedEngine of_merged(merged, fixture.settings("fp32", false));
  const std::vector<int32_t> tokens(fixture.batch.tokens.begin(),
                                    fixture.batch.tokens.begin() + fixture.batch.columns);
  CHECK(distance(of_merged.logits(tokens), of_adapters.logits(tokens)) < 1e-5);
}

TEST_CASE("adapters train alone, the base keeps its bits, and memory is as planned") {
  const std::string plan =
      GENERATE("fp32", "bf16", "te-delayed", "te-current", "deepseek-v3", "fp8-lm", "coat");
  const int64_t passes = GENERATE(1, 2);
  const std::string base = GENERATE("fp32", "bf16", "e4m3 row");
  CAPTURE(plan, passes, base);
  EngineSettings settings = adapted(test::tiny(plan, passes));
  settings.model.lora.base = parse_format(base);
  const auto device = make_device(DeviceKind::cpu);
  Engine initial(*device, settings);
  initial.model().initialize(3);
  const std::vector<float> before = test::values_of(initial);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const auto results = test::train_ranks(settings, Topology::blocks(3, 3));
    for (const test::RankResult& result : results) {
      CHECK(result.as_planned);
      CHECK_FALSE(result.allocated);
    }
    const std::vector<float>& after = results.front().weights;
    size_t begin = 0;
    for (const auto& parameter : initial.model().parameters().all()) {
      CAPTURE(parameter->name);
      const auto at = static_cast<std::ptrdiff_t>(begin);
      begin += static_cast<size_t>(parameter->shape.count());
      const auto end = static_cast<std::ptrdiff_t>(begin);
      CHECK(std::equal(before.begin() + at, before.begin() + end, after.begin() + at) !=
            is_adapter(parameter->name));
    }
    CHECK(begin == after.size());
  }
}

TEST_CASE("initial values of the base do not depend on its adapters") {
  const EngineSettings without = test::tiny("fp32", 1);
  const auto device = make_device(DeviceKind::cpu);
  Engine plain(*device, without);
  Engine with(*device, adapted(without));
  plain.model().initialize(3);
  with.model().initialize(3);
  const auto& parameters = plain.model().parameters().all();
  size_t i = 0;
  float largest = 0;
  for (const auto& parameter : with.model().parameters().all()) {
    CAPTURE(parameter->name);
    const std::vector<float> values = test::value_on_host(*device, *parameter);
    if (is_adapter(parameter->name)) {
      const float bound = 1.0F / std::sqrt(static_cast<float>(parameter->shape.back()));
      const float most = largest_magnitude(values);
      CHECK((parameter->name.ends_with("A") ? most > 0.8F * bound && most <= bound : most == 0));
      largest = std::max(largest, most);
      continue;
    }
    CHECK(parameter->name == parameters[i]->name);
    CHECK(parameter->sharding.index == parameters[i]->sharding.index);
    CHECK(test::same_bits(values, test::value_on_host(*device, *parameters[i])));
    ++i;
  }
  CHECK(i == parameters.size());
  CHECK(largest > 0);
}

TEST_CASE("adapters have the same bits on tensor and pipeline ranks") {
  struct Case {
    const char *plan, *base;
    Recompute recompute;
    bool is_gpt2 = false;  // its c_attn is q, k and v in one module
  };
  const Case of =
      GENERATE(Case{"fp32", "fp32", Recompute::block}, Case{"te-delayed", "bf16", Recompute::none},
               Case{"te-current", "e4m3 row", Recompute::none},
               Case{"te-delayed", "bf16", Recompute::none, true},
               Case{"fp32", "fp32", Recompute::none, true});
  CAPTURE(of.plan, of.base, of.is_gpt2);
  EngineSettings settings = adapted(test::small_llama(of.plan, 4));
  if (of.is_gpt2) {
    settings.model = adapted(test::small_gpt2(of.plan)).model;
  }
  settings.model.lora.base = parse_format(of.base);
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  settings.model.head_dim = 16;
  settings.model.hidden_size = 64;
  settings.model.intermediate_size = 128;
  settings.step.decoder.recompute = of.recompute;
  EngineSettings one = settings;
  one.strategy.layout = {.tensor_parts = 4};
  const SmallRun whole = run_of(one, 1);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    EngineSettings cut = settings;
    cut.strategy.layout = {.tensor = ranks, .tensor_parts = 4};
    CHECK(difference_of(whole, run_of(cut, ranks)) == "");
  }
  one.strategy.layout = {};
  for (const ScheduleKind schedule :
       {ScheduleKind::one_forward_one_backward, ScheduleKind::zero_bubble}) {
    EngineSettings stages = settings;
    stages.strategy.layout = {.pipeline = 2, .schedule = schedule};
    CHECK(difference_of(run_of(one, 1), run_of(stages, 2)) == "");
  }
}

TEST_CASE(
    "codes in blocks are cut on their edges, and read by a plan of the same blocks as they are") {
  EngineSettings settings = adapted(test::small_llama("deepseek-v3", 2));
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  settings.model.head_dim = 64;
  settings.model.hidden_size = settings.model.intermediate_size = 256;
  settings.model.lora.base = parse_format("e4m3 128x128");
  EngineSettings one = settings;
  one.strategy.layout = {.tensor_parts = 2};
  EngineSettings cut = settings;
  cut.strategy.layout = {.tensor = 2, .tensor_parts = 2};
  CHECK(difference_of(run_of(one, 1), run_of(cut, 2)) == "");
  settings.model.intermediate_size = 192;
  settings.strategy.layout = {};
  const auto device = make_device(DeviceKind::meta);
  CHECK_THROWS_WITH(Engine(*device, settings),
                    Catch::StartsWith("model.lora.base: layers.0.mlp.up has a part of 192 rows"));
}

TEST_CASE("targets are names of modules, of layers, or all linear layers") {
  ModelConfig model = test::small_llama_model();
  const auto names = [&](const std::vector<std::string>& targets) {
    model.lora = {.rank = 2, .targets = targets};
    std::vector<std::string> found;
    for (const LoraPiece& piece : lora_pieces(model)) {
      found.push_back(piece.name);
    }
    return found;
  };
  using Names = std::vector<std::string>;
  const Names usual = {"layers.0.attention.qkv.q_proj", "layers.0.attention.qkv.v_proj",
                       "layers.1.attention.qkv.q_proj", "layers.1.attention.qkv.v_proj"};
  CHECK(names({}) == usual);
  CHECK(names({"q_proj", "v_proj"}) == usual);
  CHECK(names({"all-linear"}).size() == 14);
  CHECK(names({"layers.1.mlp.up"}) ==
        Names{"layers.1.mlp.up.gate_proj", "layers.1.mlp.up.up_proj"});
  CHECK(names({"model.layers.0.*.o_proj"}) == Names{"layers.0.attention.output.o_proj"});
  CHECK(peft_targets(model) == Names{"model.layers.0.self_attn.o_proj"});
  names({"q_proj", "layers.*.mlp.down"});
  CHECK(peft_targets(model) == Names{"down_proj", "q_proj"});
  CHECK_THROWS_WITH(names({"q_prj"}),
                    Catch::StartsWith("model.lora.targets: 'q_prj' matches no linear layer of a "
                                      "block; expected down, down_proj, gate_proj, k_proj"));
}

TEST_CASE("options of peft that change results are refused by name") {
  const PeftFixture fixture("tiny-llama");
  const test::TempDir dir;
  fixture.copy_to(dir.path());
  const auto config = nlohmann::json::parse(std::ifstream(dir / kAdapterConfig));
  const auto error = [&](const std::string& key, const nlohmann::json& value) -> std::string {
    auto changed = config;
    changed[key] = value;
    std::ofstream(dir / kAdapterConfig) << changed.dump();
    try {
      read_adapter_folder(dir.path());
      return "";
    } catch (const CheckpointError& refused) {
      return refused.what();
    }
  };
  const std::pair<const char*, nlohmann::json> refused[] = {{"use_dora", true},
                                                            {"modules_to_save", {"lm_head"}},
                                                            {"rank_pattern", {{"q", 2}}},
                                                            {"alpha_pattern", {{"q", 2}}},
                                                            {"bias", "all"},
                                                            {"peft_type", "IA3"},
                                                            {"init_lora_weights", "pissa"},
                                                            {"a_new_option", 1},
                                                            {"layer_replication", {{0, 1}}}};
  for (const auto& [key, value] : refused) {
    CHECK_THAT(error(key, value),
               Catch::Contains(std::string("adapter_config.json: ") + key + " is "));
  }
  CHECK_THAT(error("r", 0), Catch::Contains("r is 0"));
  CHECK(error("use_rslora", true).empty());
  CHECK(read_adapter_folder(dir.path()).lora.scale() == 6.0);
  CHECK(error("r", 5).empty());
  CHECK_THROWS_WITH(
      TensorSource(dir.path()).read_f32("model.layers.0.self_attn.q_proj.weight", {32, 32}),
      Catch::Contains("has no lora_A [5, in]"));
  CHECK(error("base_model_name_or_path", "org/model").empty());
  CHECK_THROWS_WITH(TensorSource(dir.path()),
                    Catch::Contains("the adapters are of 'org/model', which is no folder"));
}
