#include "support/hf_folder.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "support/files.h"
#include "support/small_model.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

/// The model of tests/golden/io/llama_sharded.
ModelConfig golden_llama() {
  ModelConfig config;
  config.vocab_size = 16;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  return config;
}

TEST_CASE("a sharded folder of transformers reads as one source") {
  const auto folder = std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "io/llama_sharded";
  const TensorSource source(folder);
  CHECK(source.names().size() == 12);
  for (const std::string& name : source.names()) {
    const std::vector<float> values = source.read_f32(name, source.find(name)->shape);
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(values[i] == static_cast<float>(i) / 8 - 1);
    }
  }
  CHECK(source.find("model.layers.0.self_attn.k_proj.weight")->shape == std::vector<int64_t>{4, 8});
  ModelConfig config = read_hf_config(folder).model;
  ModelConfig expected = golden_llama();
  expected.bos_token_id = config.bos_token_id;
  expected.eos_token_id = config.eos_token_id;
  CHECK(config == expected);
}

TEST_CASE("shapes and names are checked, with and without GPT-2's prefix") {
  const test::TempDir dir;
  const float values[] = {1, 2, 3, 4};
  write_safetensors({{"wte.weight", DType::f32, {2, 2}, values}}, {}, dir / "model.safetensors");
  const TensorSource source(dir.path());
  CHECK(source.read_f32("transformer.wte.weight", {2, 2}).size() == 4);
  CHECK(source.read_f32("wte.weight", {2, 2}).size() == 4);
  CHECK_THAT(message_of<CheckpointError>([&] { source.read_f32("wte.weight", {4}); }),
             Contains("shape [2, 2], expected [4]"));
  CHECK_THAT(message_of<CheckpointError>([&] { source.read_f32("wpe.weight", {4}); }),
             Contains("no tensor 'wpe.weight'"));
  const TensorSource by_file(dir / "model.safetensors");
  CHECK(by_file.names() == std::vector<std::string>{"wte.weight"});
}

std::filesystem::path golden_moe(const std::string& name) {
  return std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "moe" / name;
}

/// A folder of tests/golden/moe with its experts in one tensor for each block.
void copy_fused(const std::string& name, const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  std::filesystem::copy_file(golden_moe(name) / "config.json", to / "config.json");
  std::filesystem::copy_file(golden_moe(name) / "fused.safetensors", to / "model.safetensors");
}

TEST_CASE("experts in one tensor are read as those in many") {
  const std::string name = GENERATE("mixtral", "qwen3-moe", "qwen3-moe-plain", "dots1");
  CAPTURE(name);
  const test::TempDir dir;
  copy_fused(name, dir / "fused");
  const TensorSource many(golden_moe(name)), fused(dir / "fused");
  CHECK(fused.names().size() == many.names().size());
  for (const std::string& tensor : many.names()) {
    CAPTURE(tensor);
    const SafetensorsEntry& entry = *many.find(tensor);
    REQUIRE(fused.find(tensor) != nullptr);
    CHECK(fused.find(tensor)->shape == entry.shape);
    CHECK(fused.read_bytes(*fused.find(tensor)) == many.read_bytes(entry));
  }
}

TEST_CASE("tensors of experts that do not fit are named") {
  const test::TempDir dir;
  const std::vector<float> values(24);
  const auto written = [&](const std::string& name, const std::vector<int64_t>& shape) {
    write_safetensors({{name, DType::f32, shape, values.data()}}, {}, dir / "model.safetensors");
    return TensorSource(dir.path());
  };
  const std::string all = "model.layers.0.mlp.experts.gate_up_proj";
  const TensorSource source = written(all, {2, 4, 3});
  CHECK_THAT(message_of<CheckpointError>([&] {
               source.read_f32("model.layers.0.mlp.experts.1.up_proj.weight", {3, 3});
             }),
             Contains("'model.layers.0.mlp.experts.1.up_proj.weight (of " + all +
                      ")' has shape [2, 3], expected [3, 3]"));
  CHECK_THAT(message_of<CheckpointError>([&] {
               written(all, {2, 3, 4});
             }),
             Contains("'" + all + "' has the shape [2, 3, 4]"));
  CHECK_THAT(message_of<CheckpointError>([&] {
               written(all, {0, 4, 3});
             }),
             Contains("1 to 1024 experts"));
  // As one tensor of a file on its own it stays what it is.
  written(all, {2, 4, 3});
  CHECK(TensorSource(dir / "model.safetensors").names() == std::vector<std::string>{all});
}

TEST_CASE("weights that are not finite are refused") {
  const test::TempDir dir;
  const uint32_t bits[] = {0x3F800000, 0x7FC00000};
  write_safetensors({{"w", DType::f32, {2}, bits}}, {}, dir / "model.safetensors");
  const TensorSource source(dir.path());
  CHECK_THAT(message_of<CheckpointError>([&] { source.read_f32("w", {2}); }),
             Contains("'w' element 1 is nan"));
}

TEST_CASE("an index cannot lead out of its folder or promise what is not there") {
  const test::TempDir dir;
  const float value = 1;
  write_safetensors({{"w", DType::f32, {1}, &value}}, {}, dir / "a.safetensors");
  std::filesystem::create_directory(dir / "model");
  write_safetensors({{"w", DType::f32, {1}, &value}}, {}, dir / "model/a.safetensors");
  const auto refusal = [&](const std::string& index) {
    test::write_file(dir / "model/model.safetensors.index.json", index);
    return message_of<CheckpointError>([&] { TensorSource(dir / "model"); });
  };
  for (const char* name : {"../a.safetensors", "/etc/passwd", "..", ".", "", "sub/a.safetensors",
                           "..\\\\a.safetensors"}) {
    std::string index = R"({"weight_map":{"w":")";
    index.append(name).append("\"}}");
    CHECK_THAT(refusal(index), Contains("not a plain file name"));
  }
  CHECK_THAT(refusal(R"({"weight_map":{"w":3}})"), Contains("not a plain file name"));
  CHECK_THAT(refusal(R"({"weight_map":{"v":"a.safetensors"}})"), Contains("'v' is not in"));
  CHECK_THAT(refusal(R"({"weight_map":{"w":"b.safetensors"}})"), Contains("b.safetensors"));
  CHECK_THAT(refusal(R"({"weight_map":{"w":"a.safetensors","w":"a.safetensors"}})"),
             Contains("appears twice"));
  CHECK_THAT(refusal(R"({"weights":{}})"), Contains("weight_map"));
  CHECK_THAT(refusal("{"), Contains("not JSON"));
  CHECK_THAT(refusal(std::string(100, '[') + std::string(100, ']')), Contains("nested"));
  test::write_file(dir / "model/model.safetensors.index.json",
                   R"({"weight_map":{"w":"a.safetensors"}})");
  CHECK(TensorSource(dir / "model").names().size() == 1);
  const test::TempDir empty;
  CHECK_THAT(message_of<CheckpointError>([&] { TensorSource(empty.path()); }),
             Contains("model.safetensors"));
}

TEST_CASE("folders are written whole or in shards and read back the same") {
  const std::vector<float> values(64, 0.5F);
  std::vector<TensorBytes> tensors;
  int64_t columns = 1;
  for (const char* name : {"t0", "t1", "t2", "t3", "t4"}) {
    tensors.push_back({name, DType::f32, {4, columns++}, values.data()});
  }
  for (const uint64_t max_shard : {uint64_t{1} << 30, uint64_t{100}, uint64_t{1}}) {
    const test::TempDir dir;
    test::write_hf_folder(dir / "out", test::small_llama_model(), tensors, max_shard);
    const bool sharded = max_shard <= 100;
    CHECK(std::filesystem::exists(dir / "out/model.safetensors") == !sharded);
    const TensorSource source(dir / "out");
    CHECK(source.names() == std::vector<std::string>{"t0", "t1", "t2", "t3", "t4"});
    for (const TensorBytes& tensor : tensors) {
      CHECK(source.read_f32(tensor.name, tensor.shape) ==
            std::vector<float>(static_cast<size_t>(source.find(tensor.name)->count()), 0.5F));
    }
    CHECK(read_hf_config(dir / "out").model == test::small_llama_model());
    if (max_shard == 100) {
      // 16 + 32 + 48 bytes fit into 100, then 64, then 80.
      CHECK(std::filesystem::exists(dir / "out/model-00003-of-00003.safetensors"));
      CHECK_THAT(test::read_file(dir / "out/model.safetensors.index.json"),
                 Contains("\"total_size\": 240"));
    }
  }
}

}  // namespace
}  // namespace fp8train
