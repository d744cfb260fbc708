#pragma once
// Models of tests/golden, and what other programs compute of their tokens.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/dry_run.h"
#include "engine/engine.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "train/checkpoint/weights.h"
#include "train/inference/generator.h"

namespace fp8train::test {

/// A folder with expected.safetensors, which has tokens, and expected.json.
struct GoldenModel {
  std::filesystem::path folder;
  SafetensorsFile expected;
  nlohmann::json numbers;
  std::vector<int32_t> tokens;

  explicit GoldenModel(const std::string& name)
      : folder(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / name),
        expected(folder / "expected.safetensors"),
        tokens(ids("tokens")) {
    std::ifstream(folder / "expected.json") >> numbers;
  }

  std::vector<int32_t> ids(const std::string& tensor) const {
    const SafetensorsEntry& entry = *expected.find(tensor);
    std::vector<int32_t> values(static_cast<size_t>(entry.count()));
    expected.read(entry, values.data());
    return values;
  }
  std::vector<float> logits() const { return expected.read_f32(*expected.find("logits")); }

  /// The tokens with their targets.
  Batch batch_of_rows() const {
    const std::vector<int64_t>& shape = expected.find("tokens")->shape;
    return {.rows = shape[0], .columns = shape[1], .tokens = tokens, .targets = ids("targets")};
  }
  /// All tokens of a sequence but the last, and what follows each.
  Batch batch() const {
    return {.rows = 1,
            .columns = std::ssize(tokens) - 1,
            .tokens = {tokens.begin(), tokens.end() - 1},
            .targets = {tokens.begin() + 1, tokens.end()}};
  }
};

/// Returns the names of the models in a folder of tests/golden, "moe/mixtral", sorted.
inline std::vector<std::string> golden_models(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / folder)) {
    names.push_back(folder + "/" + entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

/// The settings of a step on `batch`.
inline EngineSettings golden_settings(const std::filesystem::path& model, const std::string& plan,
                                      const Batch& batch) {
  EngineSettings settings;
  settings.step.seed = 0;
  settings.model = completed(read_hf_config(model).model);
  settings.plan = plan_named(plan);
  settings.step.micro_batch_size = batch.rows;
  settings.step.seq_length = batch.columns;
  return settings;
}

/// An engine with the weights of a folder, and with adapters where the settings have some.
struct LoadedEngine {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine;

  LoadedEngine(const std::filesystem::path& folder, const EngineSettings& settings)
      : LoadedEngine(TensorSource(folder), settings) {}
  LoadedEngine(const TensorSource& weights, const EngineSettings& settings,
               const std::filesystem::path& adapters = {})
      : engine(*device, settings) {
    engine.reserve(dry_run_step(settings, {}).plan);
    load_weights(*device, engine.model(), weights);
    if (settings.model.lora.is_on()) {
      load_adapters(*device, engine.model(), adapters);
    }
    engine.weights_changed();
  }

  /// [T, V] of a sequence.
  std::vector<float> logits(const std::vector<int32_t>& tokens) {
    Generator generator(*device, engine.model(), std::ssize(tokens));
    std::vector<float> all;
    for (auto end = tokens.begin(); end != tokens.end();) {
      const std::vector<float> one = generator.logits_after({tokens.begin(), ++end});
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};

/// The largest difference, relative to the largest magnitude of b; infinite for other sizes.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 1e-30;
  double difference = a.size() == b.size() ? 0.0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return difference / largest;
}

}  // namespace fp8train::test
