// Parts of a model, as pipeline stages have them: together they are the model, each with the names
// and the indices of the whole.

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "model/decoder.h"
#include "support/parameters.h"
#include "support/small_model.h"

namespace fp8train {
namespace {

ModelConfig model_of(bool gpt2, bool tied) {
  ModelConfig config = gpt2 ? test::small_gpt2_model() : test::small_llama_model();
  config.num_hidden_layers = 5;
  config.tie_word_embeddings = tied;
  return completed(config);
}

/// The parts of `stages` that have the chunks of blocks up to each of `ends` in turns.
std::vector<ModelPart> parts_of(const std::vector<int64_t>& ends, size_t stages) {
  std::vector<ModelPart> parts(stages);
  int64_t first = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    parts[i % stages].chunks.emplace_back(first, ends[i]);
    first = ends[i];
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    parts[stage].embeds = stage == 0;
    parts[stage].has_head = stage + 1 == stages;
  }
  return parts;
}

struct Made {
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, uint64_t> indices, slots;
};

void add(const ModelConfig& config, const char* plan, const ModelPart& part, Made& made) {
  const auto device = make_device(DeviceKind::cpu);
  Decoder model(*device, config, plan_named(plan), {.part = part});
  model.initialize(11);
  for (const auto& parameter : model.parameters().all()) {
    const bool twice = config.tie_word_embeddings && parameter->name == "embedding.weight";
    const auto values = to_host_f32(*device, parameter->value);
    const bool is_new = made.values.emplace(parameter->name, values).second;
    CAPTURE(parameter->name);
    CHECK((is_new || twice));
    CHECK(made.values.at(parameter->name) == values);
    made.indices[parameter->name] = parameter->sharding.index;
  }
  for (const auto& slot : model.scaling().slots()) {
    CHECK(made.slots.emplace(slot->layer + "." + slot->role, slot->index).second);
  }
}

TEST_CASE("the parts of stages are the model, with its values and its indices") {
  const bool gpt2 = GENERATE(false, true);
  const bool tied = GENERATE(false, true);
  const ModelConfig config = model_of(gpt2, tied);
  for (const char* plan : {"bf16", "te-delayed", "deepseek-v3"}) {
    CAPTURE(gpt2, tied, plan);
    Made whole;
    add(config, plan, {.chunks = {{0, config.num_hidden_layers}}}, whole);
    std::set<uint64_t> indices;
    for (const auto& [name, index] : whole.indices) {
      CHECK(indices.insert(index).second);
    }
    for (const auto& [ends, stages] : {std::pair<std::vector<int64_t>, size_t>{{2, 5}, 2},
                                       {{1, 2, 4, 5}, 4},
                                       {{4, 5}, 2},
                                       {{1, 2, 4, 5}, 2}}) {
      Made parts;
      for (const ModelPart& part : parts_of(ends, stages)) {
        add(config, plan, part, parts);
      }
      CHECK(parts.values == whole.values);
      CHECK(parts.indices == whole.indices);
      CHECK(parts.slots == whole.slots);
    }
  }
}

}  // namespace
}  // namespace fp8train
