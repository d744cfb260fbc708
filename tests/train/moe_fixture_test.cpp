// Tiny models with experts of every family that has some against transformers: logits, every
// gradient, names, folders. The fixtures come from tests/golden/make_moe.py.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/export/export_folder.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "model/hf_names.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "train/golden_model.h"

using namespace fp8train;
using Catch::Contains;
using test::LoadedEngine;

namespace {

const std::vector<std::string> kNames = test::golden_models("moe");

struct MoeFixture : test::GoldenModel {
  using GoldenModel::GoldenModel;

  /// No token is dropped.
  EngineSettings settings(const std::string& plan = "fp32") const {
    EngineSettings settings = test::golden_settings(folder, plan, batch());
    settings.step.decoder.moe.capacity_factor = 8.0;
    settings.step.decoder.moe.bias_rate = 0.0;
    return settings;
  }
};

/// Returns |a - b| / |b|, in which all of `b` zero means that all of `a` must be.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0;
  double length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - b[i], 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return length == 0 ? apart : std::sqrt(apart / length);
}

}  // namespace

TEST_CASE("logits of every family with experts are those of transformers") {
  const std::string name = GENERATE(from_range(kNames));
  CAPTURE(name);
  const MoeFixture fixture(name);
  LoadedEngine loaded(fixture.folder, fixture.settings());
  const std::vector<float> logits = fixture.logits();
  CHECK(std::ranges::max(logits) > 1);
  CHECK(test::distance(loaded.logits(fixture.tokens), logits) < 1e-5);
}

TEST_CASE("loss and gradients of every family with experts are those of transformers") {
  const std::string name = GENERATE(from_range(kNames));
  CAPTURE(name);
  const MoeFixture fixture(name);
  const EngineSettings settings = fixture.settings();
  LoadedEngine loaded(fixture.folder, settings);
  const Batch batch = fixture.batch();
  loaded.engine.step([&]() -> const Batch& { return batch; }, 0, 0.0F, false);
  const double loss = fixture.numbers.at("loss");
  CHECK(loaded.engine.step_loss().mean == Approx(loss).epsilon(1e-6));
  size_t compared = 0;
  for (const auto& parameter : loaded.engine.model().parameters().all()) {
    if (parameter->name.ends_with(".router.bias")) {
      continue;  // it has no gradient
    }
    const std::vector<float> all = to_host_f32(*loaded.device, parameter->gradient);
    const int64_t columns = parameter->shape.rank() == 1 ? 1 : parameter->shape.back();
    for (const HfPiece& piece : hf_pieces(settings.model, parameter->name)) {
      CAPTURE(piece.name);
      const SafetensorsEntry* const entry = fixture.expected.find("grad." + piece.name);
      REQUIRE(entry != nullptr);
      const std::vector<float> got(all.begin() + piece.begin * columns,
                                   all.begin() + (piece.begin + piece.rows) * columns);
      CHECK(difference(got, fixture.expected.read_f32(*entry)) <= 1e-5);
      ++compared;
    }
  }
  const size_t biases = name == "moe/dots1" ? 1 : 0;
  CHECK(compared + biases + 2 == fixture.expected.header().entries.size());
}

TEST_CASE("every family with experts is written as what transformers says it is") {
  const std::string name = GENERATE(from_range(kNames));
  CAPTURE(name);
  const MoeFixture fixture(name);
  const ModelConfig model = completed(read_hf_config(fixture.folder).model);
  const std::string text = write_hf_config(model, DType::f32);
  CHECK(nlohmann::json::parse(text).at("architectures").at(0) ==
        fixture.numbers.at("architecture"));
  CHECK(completed(parse_hf_config(text, "written").model) == model);
  const TensorSource source(fixture.folder);
  std::vector<std::string> names;
  int64_t count = 0;
  for (const ModelTensor& tensor : model_tensors(model)) {
    CAPTURE(tensor.piece.name);
    REQUIRE(source.find(tensor.piece.name) != nullptr);
    CHECK(source.find(tensor.piece.name)->shape == tensor.shape);
    names.push_back(tensor.piece.name);
    count += tensor.piece.rows * tensor.columns();
  }
  std::ranges::sort(names);
  CHECK(names == source.names());
  CHECK(count == parameter_count(model));
}

TEST_CASE("a folder with experts, in one tensor or in many, is exported without a changed bit") {
  const std::string name = GENERATE(from_range(kNames));
  const bool fused = GENERATE(false, true);
  CAPTURE(name, fused);
  const MoeFixture fixture(name);
  const test::TempDir dir;
  std::filesystem::create_directory(dir / "in");
  std::filesystem::copy_file(fixture.folder / "config.json", dir / "in/config.json");
  std::filesystem::copy_file(fixture.folder / (fused ? "fused.safetensors" : "model.safetensors"),
                             dir / "in/model.safetensors");
  export_folder(dir / "in", dir / "out", {.dtype = DType::f32});
  const TensorSource before(fixture.folder), after(dir / "out");
  REQUIRE(after.names() == before.names());
  for (const std::string& tensor : before.names()) {
    CAPTURE(tensor);
    CHECK(after.read_bytes(*after.find(tensor)) == before.read_bytes(*before.find(tensor)));
  }
  CHECK(completed(read_hf_config(dir / "out").model) == fixture.settings().model);
}

TEST_CASE("an expert that a folder lacks is named") {
  const MoeFixture fixture("moe/qwen3-moe");
  const test::TempDir dir;
  std::filesystem::copy_file(fixture.folder / "config.json", dir / "config.json");
  const TensorSource source(fixture.folder);
  const std::string lost = "model.layers.1.mlp.experts.6.up_proj.weight";
  std::vector<TensorBytes> tensors;
  std::vector<std::vector<char>> bytes;
  bytes.reserve(source.names().size());
  for (const std::string& name : source.names()) {
    if (name != lost) {
      bytes.push_back(source.read_bytes(*source.find(name)));
      tensors.push_back({name, DType::f32, source.find(name)->shape, bytes.back().data()});
    }
  }
  write_safetensors(tensors, {}, dir / "model.safetensors");
  CHECK_THAT(test::message_of<CheckpointError>(
                 [&] { export_folder(dir.path(), dir / "out", {.dtype = DType::f32}); }),
             Contains("1 missing: " + lost));
  CHECK_THAT(
      test::message_of<CheckpointError>([&] { LoadedEngine(dir.path(), fixture.settings()); }),
      Contains("there is no tensor '" + lost + "'"));
}

TEST_CASE("every family with experts trains from its folder") {
  const std::string name = GENERATE(from_range(kNames));
  const std::string plan = GENERATE("fp32", "te-current");
  CAPTURE(name, plan);
  const MoeFixture fixture(name);
  EngineSettings settings = fixture.settings(plan);
  settings.step.seq_length = 16;  // FP8 needs a multiple of 16
  settings.optimizer.lr = 3e-3;
  LoadedEngine loaded(fixture.folder, settings);
  Batch batch = fixture.batch();
  batch.columns = 16;
  batch.tokens.resize(16);
  batch.targets.resize(16);
  std::vector<double> losses;
  for (int64_t step = 0; step < 5; ++step) {
    loaded.engine.step([&]() -> const Batch& { return batch; }, step, 3e-3F, false);
    losses.push_back(loaded.engine.step_loss().mean);
  }
  CAPTURE(losses);
  CHECK(losses.back() < losses.front() - 0.2);
}
