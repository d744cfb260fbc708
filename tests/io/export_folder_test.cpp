#include "io/export/export_folder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/tokenizer.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::filesystem::path family(const std::string& name) {
  return std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "families" / name;
}

TEST_CASE("an export in fp32 and back to bf16 has the bytes that transformers wrote") {
  const std::string name = GENERATE("qwen3", "gpt2", "qwen2-yarn-sharded");
  CAPTURE(name);
  const test::TempDir dir;
  const ExportReport wide = export_folder(family(name), dir / "fp32", {.dtype = DType::f32});
  const ExportReport narrow = export_folder(dir / "fp32", dir / "bf16", {.dtype = DType::bf16});
  const TensorSource original(family(name));
  const TensorSource exported(dir / "bf16");
  CHECK(exported.names() == original.names());
  CHECK(wide.tensors == original.names().size());
  CHECK(wide.bytes == 2 * narrow.bytes);
  for (const std::string& tensor : original.names()) {
    CAPTURE(tensor);
    const SafetensorsEntry& entry = *exported.find(tensor);
    CHECK(entry.type.dtype == DType::bf16);
    CHECK(exported.read_f32(tensor, entry.shape) ==
          original.read_f32(tensor, original.find(tensor)->shape));
  }
  CHECK(read_hf_config(dir / "bf16").model == read_hf_config(family(name)).model);
  CHECK_THAT(test::read_file(dir / "bf16/config.json"), Contains("\"dtype\": \"bfloat16\""));
}

TEST_CASE("an export has all tokens that end a text") {
  const test::TempDir dir;
  std::filesystem::create_directory(dir / "in");
  std::string config = test::read_file(family("qwen3") / "config.json");
  const size_t at = config.find("\"eos_token_id\":");
  REQUIRE(at != std::string::npos);
  config.replace(at, config.find_first_of(",\n", at) - at, "\"eos_token_id\": [7, 5]");
  test::write_file(dir / "in/config.json", config);
  std::filesystem::copy_file(family("qwen3") / "model.safetensors", dir / "in/model.safetensors");
  export_folder(dir / "in", dir / "out", {.dtype = DType::f32});
  CHECK(read_hf_config(dir / "out").eos_token_ids == std::vector<int64_t>{7, 5});
}

TEST_CASE("an export ends answers where the chat template does") {
  const test::TempDir dir;
  std::filesystem::copy(family("qwen3"), dir / "in");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "chat/chatml" / name,
                               dir / "in" / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  const int32_t end = SpecialTokens(*open_tokenizer(dir / "in")).id_of("<|im_end|>");
  REQUIRE(end >= 0);
  const auto exported = [&](const std::string& given, const char* out) {
    test::write_file(dir / "in/generation_config.json", given);
    const ExportReport report = export_folder(dir / "in", dir / out, {.dtype = DType::f32});
    const std::string file = (dir / out / "generation_config.json").string();
    const bool noted = std::ranges::any_of(report.notes, [&](const std::string& note) {
      return note.starts_with(file + ": eos_token_id");
    });
    const auto config =
        nlohmann::json::parse(test::read_file(dir / out / "generation_config.json"));
    CHECK(noted == (config.dump() != nlohmann::json::parse(given).dump()));
    return config;
  };
  const nlohmann::json added = exported(R"({"top_p": 0.5, "eos_token_id": 3})", "a");
  CHECK(added["eos_token_id"] == nlohmann::json({end, 3}));
  CHECK(added["top_p"] == 0.5);
  const std::string there = "{\"eos_token_id\": [" + std::to_string(end) + ", 2]}";
  CHECK(exported(there, "b") == nlohmann::json::parse(there));
}

TEST_CASE("an export in fp16 rounds to nearest, and refuses what fp16 cannot hold") {
  const test::TempDir dir;
  std::filesystem::create_directory(dir / "in");
  std::filesystem::copy_file(family("gpt2") / "config.json", dir / "in/config.json");
  const std::string name = "transformer.ln_f.bias";
  const TensorSource original(family("gpt2"));
  std::map<std::string, std::vector<float>> values;
  for (const std::string& tensor : original.names()) {
    values[tensor] = original.read_f32(tensor, original.find(tensor)->shape);
  }
  std::vector<float>& changed = values.at(name);
  const auto write = [&] {
    std::vector<TensorBytes> tensors;
    for (const auto& [tensor, data] : values) {
      tensors.push_back({tensor, DType::f32, original.find(tensor)->shape, data.data()});
    }
    write_safetensors(tensors, {}, dir / "in/model.safetensors");
  };
  const float given[] = {1.0F + 1.0F / 2048, 1.0F + 3.0F / 2048, 65519.0F};
  std::copy(std::begin(given), std::end(given), changed.begin());
  write();
  export_folder(dir / "in", dir / "out", {.dtype = DType::f16});
  std::vector<float> read = TensorSource(dir / "out").read_f32(name, {32});
  read.resize(3);
  CHECK(read == std::vector<float>{1.0F, 1.0F + 4.0F / 2048, 65504.0F});
  changed[2] = 65520.0F;
  write();
  CHECK_THAT(message_of<CheckpointError>(
                 [&] { export_folder(dir / "in", dir / "none", {.dtype = DType::f16}); }),
             Contains(name + " element 2 is 65520, which fp16 cannot hold"));
  CHECK_FALSE(std::filesystem::exists(dir / "none/config.json"));
}

TEST_CASE("an export is cut into shards, and takes the tokenizer along") {
  const test::TempDir dir;
  std::filesystem::copy(family("mistral"), dir / "in");
  test::write_file(dir / "in/tokenizer.json", "{}");
  test::write_file(dir / "in/generation_config.json", "{\"do_sample\": true}");
  test::write_file(dir / "in/notes.txt", "x");
  const ExportReport report =
      export_folder(dir / "in", dir / "out", {.dtype = DType::f32, .max_shard_bytes = 20'000});
  CHECK(report.copied == std::vector<std::string>{"tokenizer.json", "generation_config.json"});
  CHECK(test::read_file(dir / "out/generation_config.json") == "{\"do_sample\": true}");
  CHECK_FALSE(std::filesystem::exists(dir / "out/notes.txt"));
  CHECK_FALSE(std::filesystem::exists(dir / "out/model.safetensors"));
  const TensorSource source(dir / "out");
  CHECK(source.names() == TensorSource(family("mistral")).names());
  size_t shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "out")) {
    shards += entry.path().extension() == ".safetensors" ? 1 : 0;
  }
  CHECK(shards > 3);
}

}  // namespace
}  // namespace fp8train
