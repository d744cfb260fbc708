// Ranks that load parts of weights with one scale for the tensor have the scale of the whole.

#include <catch2/catch.hpp>

#include "support/hf_folder.h"
#include "support/temp_dir.h"
#include "train/checkpoint/weights.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

EngineSettings settings_of(const std::string& plan) {
  EngineSettings settings = small_llama(plan);
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  return settings;
}

/// Writes initial weights as a model folder.
void write_model(const std::filesystem::path& folder, const ModelConfig& config) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Decoder model(*device, config, plan_named("fp32"), {.gradients = false});
  model.initialize(5);
  std::vector<TensorBytes> tensors;
  std::vector<std::vector<float>> all;
  for (const auto& parameter : model.parameters().all()) {
    const int64_t columns = parameter->sharding.width();
    std::vector<float>& values = all.emplace_back(static_cast<size_t>(parameter->shape.count()));
    value_to_host(*device, *parameter, values.data());
    for (const HfPiece& piece : hf_pieces(config, parameter->name)) {
      tensors.push_back({.name = piece.name,
                         .dtype = DType::f32,
                         .shape = hf_shape(piece, parameter->shape.rank() == 1, columns),
                         .data = values.data() + piece.begin * columns});
    }
  }
  write_hf_folder(folder, config, tensors);
}

/// The codes and scales of what this rank stores of all values.
std::vector<std::byte> bytes_of(Engine& engine) {
  std::vector<std::byte> bytes;
  for (const auto& parameter : engine.model().parameters().all()) {
    const Encoded& value = parameter->updated.value;
    for (const View& view : {value.codes, value.scales}) {
      const auto* const begin = static_cast<const std::byte*>(view.data);
      bytes.insert(bytes.end(), begin, begin + (view.empty() ? 0 : view.bytes()));
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("weights that ranks load by parts have the bits of whole tensors", "[scales]") {
  const std::string plan = GENERATE("fp8-lm", "msamp-o3");
  const int tensor = GENERATE(1, 2);
  const int stage = GENERATE(0, 1, 3);
  CAPTURE(plan, tensor, stage);
  const TempDir dir;
  EngineSettings settings = settings_of(plan);
  settings.strategy.zero_stage = stage;
  settings.strategy.layout.tensor = tensor;
  write_model(dir / "model", settings.model);
  const auto errors = run_ranks(Topology::blocks(4, 4), [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    const Magnitudes agreed = agreed_magnitudes(engine, dir / "model");
    check(agreed.empty() == (tensor == 1 && stage == 0), "ranks with parts agree");
    const TensorSource source(dir / "model");
    load_weights(*device, engine.model(), source);
    const std::vector<std::byte> whole = bytes_of(engine);
    engine.model().initialize(9);
    check(bytes_of(engine) != whole, "other weights");
    load_weights(*device, engine.model(), source, MissingTokens::refuse, agreed);
    check(bytes_of(engine) == whole, "the same bits");
    const auto none = dir / (comm.rank() == 1 ? "none" : "model");
    check(agreed_magnitudes(engine, none).empty(), "where one rank reads nothing, none agrees");
  });
  CHECK(errors == std::vector<std::string>(errors.size()));
}
