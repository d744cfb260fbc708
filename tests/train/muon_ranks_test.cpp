// Muon on ranks that have parts of a matrix, other experts or other blocks: what is orthogonalized
// is whole matrices, so that results have the bits of one rank wherever gradients have them.

#include <catch2/catch.hpp>

#include <map>
#include <mutex>

#include "base/error.h"
#include "engine/state_tensors.h"
#include "support/small_moe.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

EngineSettings with(EngineSettings settings, const ParallelLayout& layout, int64_t stage = 0) {
  settings.optimizer.name = "muon";
  settings.strategy.layout = layout;
  settings.strategy.zero_stage = stage;
  settings.strategy.bucket_bytes = 65536;
  return settings;
}

/// With heads and an inner width that four ranks share in blocks of 128.
EngineSettings wide_llama(const std::string& plan) {
  EngineSettings settings = llama(plan);
  settings.model.num_key_value_heads = 8;
  settings.model.intermediate_size = 768;
  return settings;
}

EngineSettings with_experts(const std::string& plan) {
  EngineSettings settings = small_deepseek(plan);
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  return settings;
}

/// Whether Muon updates the weights and stores the momentum of a plan.
bool is_updated(const std::string& plan) {
  try {
    dry_run_step(with(wide_llama(plan), {}), {}, Topology(), 0);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// Returns how often the ranks save each tensor, where none has all: states, and values.
std::map<std::string, int64_t> saved_elements(const EngineSettings& settings, int ranks) {
  std::map<std::string, int64_t> elements;
  std::mutex mutex;
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, settings, &comm);
        const StateWriter writer = state_writer(engine);
        const std::lock_guard lock(mutex);
        CHECK(writer.in_parts);
        CHECK(writer.ranks <= ranks);
        for (const StateTensor& saved :
             saved_weights(engine.model().parameters(), engine.mesh(), {})) {
          elements[saved.name] += saved.tensor.count();
        }
        for (const SavedTensor& saved : saved_tensors(engine)) {
          if (writer.writes) {
            elements[saved.name.substr(0, saved.name.find('@'))] += saved.view.count();
          }
        }
      });
  CHECK(errors == std::vector<std::string>(errors.size()));
  return elements;
}

std::map<std::string, int64_t> elements_of_one(const EngineSettings& settings) {
  std::map<std::string, int64_t> elements;
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  for (const auto& parameter : engine.model().parameters().all()) {
    elements["value." + parameter->name] += parameter->shape.count();
  }
  for (const SavedTensor& saved : saved_tensors(engine)) {
    elements[saved.name] += saved.view.count();
  }
  return elements;
}

}  // namespace

TEST_CASE("muon has the bits of one rank on ranks that share layers, in every plan that it updates",
          "[muon]") {
  const std::string plan = GENERATE(from_range(compared_plans()));
  if (!is_updated(plan)) {
    return;
  }
  CAPTURE(plan);
  const EngineSettings settings = wide_llama(plan);
  check_equal(run(with(settings, {.tensor_parts = 2}), 1),
              run(with(settings, {.tensor = 2, .tensor_parts = 2}), 2));
}

TEST_CASE("muon's momentum has any stored format on ranks that share layers", "[muon]") {
  const char* const momentum =
      GENERATE("fp32", "bf16", "e4m3 tensor current", "e4m3 group(128) expanded");
  const std::string model = GENERATE("llama", "gpt2", "qwen3");
  CAPTURE(momentum, model);
  EngineSettings settings = model == "gpt2" ? gpt2_with_heads("te-delayed") : llama("te-delayed");
  settings.model.qk_norm = model == "qwen3";
  settings.plan.moment1 = parse_format(momentum);
  settings.optimizer.muon.scale =
      model == "gpt2" ? MuonScale::original : MuonScale::match_rms_adamw;
  const Results one = run(with(settings, {.tensor_parts = 4}), 1);
  // The parts of four ranks are narrower than groups of 128.
  for (const int ranks :
       settings.plan.moment1.block.is_group() ? std::vector{2} : std::vector{2, 4}) {
    CAPTURE(ranks);
    const Results several = run(with(settings, {.tensor = ranks, .tensor_parts = 4}), ranks);
    check_equal(one, several);
    CHECK(several.as_planned);
  }
}

TEST_CASE("without parts of sums muon differs by the order of sums", "[muon]") {
  const EngineSettings settings = llama("fp32");
  const Results one = run(with(settings, {}), 1, 1);
  const Results several = run(with(settings, {.tensor = 4}), 4, 1);
  CHECK(difference(one.gradients, several.gradients, 2e-6) == "");
  CHECK(several.norms[0] == Approx(one.norms[0]).epsilon(1e-6));
  // The iteration rounds to bf16 five times.
  CHECK(difference(one.values, several.values, 1e-3) == "");
}

TEST_CASE("muon goes with sequences that ranks share, with stages, and with shared work",
          "[muon]") {
  const std::string plan = GENERATE("fp32", "te-delayed");
  const int64_t stage = GENERATE(0, 1);
  CAPTURE(plan, stage);
  EngineSettings settings = wide_llama(plan);
  settings.plan.moment1 = parse_format("e4m3 tensor current");
  settings.step.gradient_accumulation_steps = 2;
  const auto check_layout = [&](ParallelLayout layout, int data) {
    CAPTURE(layout.tensor, layout.pipeline, layout.context);
    layout.tensor_parts = 2;
    ParallelLayout one = layout;
    one.tensor = one.pipeline = 1;
    const int alone = data * static_cast<int>(layout.context);
    const Results expected = run(with(settings, one), alone, 2);
    const Results several = run(with(settings, layout, stage),
                                alone * static_cast<int>(layout.tensor * layout.pipeline), 2);
    CHECK(difference(expected.values, several.values, 0) == "");
    CHECK(several.last_losses == expected.losses);
    CHECK(several.as_planned);
  };
  check_layout({.pipeline = 2}, 1);
  check_layout({.pipeline = 2}, 2);
  check_layout({.tensor = 2}, 2);
  check_layout({.tensor = 2, .pipeline = 2}, 2);
  check_layout({.tensor = 2, .context = 2}, 1);
}

TEST_CASE("ranks with different experts share muon's work by whole parameters", "[muon]") {
  const std::string plan = GENERATE("fp32", "te-delayed", "te-current", "deepseek-v3");
  const auto [layout, ranks] =
      GENERATE(std::pair(ParallelLayout{.expert = 2}, 2), std::pair(ParallelLayout{.expert = 2}, 4),
               std::pair(ParallelLayout{.expert = 4}, 4),
               std::pair(ParallelLayout{.tensor = 2, .expert = 2}, 4),
               std::pair(ParallelLayout{.tensor = 2, .expert = 4}, 8));
  if (layout.tensor > 1 && plan == "deepseek-v3") {
    return;  // the parts are narrower than its blocks
  }
  CAPTURE(plan, layout.tensor, layout.expert, ranks);
  const EngineSettings settings = with_experts(plan);
  const Results whole = run(with(settings, layout), ranks);
  const Results shared = run(with(settings, layout, 1), ranks);
  CHECK(shared.losses == whole.losses);
  CHECK(shared.norms == whole.norms);
  CHECK(difference(whole.values, shared.values, 0) == "");
  CHECK(shared.as_planned);
}

TEST_CASE("each tensor of muon is saved once, whatever ranks have its parts", "[muon]") {
  const auto [layout, ranks] = GENERATE(
      std::pair(ParallelLayout{.pipeline = 2}, 4), std::pair(ParallelLayout{.tensor = 2}, 4),
      std::pair(ParallelLayout{.tensor = 2, .pipeline = 2}, 8),
      std::pair(ParallelLayout{.expert = 2}, 4), std::pair(ParallelLayout{.expert = 4}, 4),
      std::pair(ParallelLayout{.tensor = 2, .expert = 2}, 4),
      std::pair(ParallelLayout{.pipeline = 2, .expert = 2}, 8));
  const int64_t stage = GENERATE(0, 1);
  CAPTURE(layout.tensor, layout.pipeline, layout.expert, ranks, stage);
  const EngineSettings settings = layout.expert > 1 ? with_experts("bf16") : llama("bf16");
  const std::map<std::string, int64_t> one = elements_of_one(with(settings, {}));
  std::map<std::string, int64_t> several = saved_elements(with(settings, layout, stage), ranks);
  for (const auto& [name, elements] : one) {
    CAPTURE(name);
    const bool pads = name.ends_with("embedding.weight") || name.ends_with("head.weight");
    CHECK((several[name] == elements || (pads && several[name] / elements == 1)));
  }
  CHECK(several.size() == one.size());
}

TEST_CASE("each exchange of muon on ranks that share layers is needed", "[muon]") {
  EngineSettings settings = llama("bf16");
  settings.model.num_hidden_layers = 1;
  settings.plan.moment1 = parse_format("e4m3 tensor current");
  settings = with(settings, {.tensor = 2, .tensor_parts = 2});
  CHECK(exchanges_not_needed(settings, true) == std::vector<std::string>());
}
