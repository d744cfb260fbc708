// Models as files of other programs: GGUF against what llama.cpp's own Python package writes
// (tests/golden/make_gguf.py).

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "gguf_file.h"
#include "io/export/encode_values.h"
#include "io/export/export_gguf.h"
#include "io/hf_config.h"
#include "numeric/convert.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;
namespace fs = std::filesystem;

const fs::path kExportGolden = FP8TRAIN_GOLDEN_DIR;

/// A copy of a model's config.json with a field replaced: its text up to the next comma.
std::string with_field(const std::string& config, const std::string& key,
                       const std::string& value) {
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(config);
  document[key] = nlohmann::ordered_json::parse(value);
  return document.dump(2);
}

/// Tensors of a folder in memory.
struct Weights {
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, std::vector<float>> values;

  explicit Weights(const fs::path& folder) {
    const TensorSource source(folder);
    for (const std::string& name : source.names()) {
      shapes[name] = source.find(name)->shape;
      values[name] = source.read_f32(name, shapes[name]);
    }
  }

  /// Repeats the last row of a table, as make_gguf.py does.
  void extend(const std::string& name, int64_t rows) {
    std::vector<float>& table = values.at(name);
    const int64_t width = shapes.at(name)[1];
    const std::vector<float> last(table.end() - width, table.end());
    for (; shapes.at(name)[0] < rows; ++shapes.at(name)[0]) {
      table.insert(table.end(), last.begin(), last.end());
    }
  }

  void write(const fs::path& folder) const {
    std::vector<TensorBytes> tensors;
    for (const auto& [name, data] : values) {
      tensors.push_back({name, DType::f32, shapes.at(name), data.data()});
    }
    write_safetensors(tensors, {}, folder / "model.safetensors");
  }
};

/// The model of a fixture with its tokenizer, as make_gguf.py sees them.
void write_model(const nlohmann::json& fixture, const fs::path& folder) {
  const fs::path from = kExportGolden / "families" / fixture["model"].get<std::string>();
  std::string config = test::read_file(from / "config.json");
  Weights weights(from);
  if (!fixture["tokenizer"].is_null()) {
    const auto vocabulary = fixture["vocab_size"].get<int64_t>();
    config = with_field(config, "vocab_size", std::to_string(vocabulary));
    for (const char* name :
         {"model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight"}) {
      if (weights.values.contains(name)) {
        weights.extend(name, vocabulary);
      }
    }
    fs::copy_file(
        kExportGolden / "tokenizers" / fixture["tokenizer"].get<std::string>() / "tokenizer.json",
        folder / "tokenizer.json");
  }
  test::write_file(folder / "config.json", config);
  weights.write(folder);
}

GgufType type_named(const std::string& name) {
  return name == "f32"    ? GgufType::f32
         : name == "f16"  ? GgufType::f16
         : name == "bf16" ? GgufType::bf16
                          : GgufType::q8_0;
}

/// tests/golden/make_gguf.py writes a file for each of its CASES.
std::vector<std::string> gguf_fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kExportGolden / "io/gguf")) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  REQUIRE(names.size() >= 6);
  return names;
}

TEST_CASE("a GGUF file has the keys, names and bytes that llama.cpp's package writes", "[gguf]") {
  const std::string name = GENERATE(from_range(gguf_fixtures()));
  CAPTURE(name);
  const test::TempDir dir;
  const auto fixture =
      nlohmann::json::parse(test::read_file(kExportGolden / "io/gguf" / (name + ".json")));
  write_model(fixture, dir.path());
  const GgufReport report = export_gguf(open_model_source(dir.path()), dir / "model.gguf",
                                        type_named(fixture["type"].get<std::string>()));
  for (const std::string& note : report.notes) {
    const bool no_tokenizer = fixture["tokenizer"].is_null();
    CHECK_THAT(note,
               Contains(no_tokenizer ? "has no tokenizer" : "such texts get other ids there"));
  }
  CHECK_FALSE(report.notes.empty());
  const test::GgufFile file(dir / "model.gguf");
  for (const auto& [key, expected] : fixture["metadata"].items()) {
    CAPTURE(key);
    REQUIRE(file.metadata.contains(key));
    CHECK(file.metadata.at(key) == expected);
  }
  CHECK(file.tensors.size() == fixture["tensors"].size());
  for (const auto& [tensor, expected] : fixture["tensors"].items()) {
    CAPTURE(tensor);
    REQUIRE(file.tensors.contains(tensor));
    const test::GgufFile::Tensor& found = file.tensors.at(tensor);
    CHECK(found.type == expected[0]);
    CHECK(found.shape == expected[1].get<std::vector<uint64_t>>());
    CHECK(fmt::format("{:016x}", test::fnv(found.bytes)) == expected[2]);
  }
}

TEST_CASE("biases that GPT-2 lacks are zeros in a GGUF file", "[gguf]") {
  const test::TempDir dir;
  fs::create_directories(dir / "whole");
  const auto fixture = nlohmann::json::parse(test::read_file(kExportGolden / "io/gguf/gpt2.json"));
  write_model(fixture, dir / "whole");
  Weights weights(dir / "whole");
  std::string config = test::read_file(dir / "whole/config.json");
  std::erase_if(weights.values, [](const auto& tensor) { return tensor.first.ends_with(".bias"); });
  for (const char* bias : {"qkv_bias", "attention_output_bias", "mlp_bias", "norm_bias"}) {
    config = with_field(config, bias, "false");
  }
  test::write_file(dir / "config.json", config);
  weights.write(dir.path());
  const GgufReport report =
      export_gguf(open_model_source(dir.path()), dir / "model.gguf", GgufType::f16);
  CHECK(std::any_of(report.notes.begin(), report.notes.end(), [](const std::string& note) {
    return note.find("the model lacks 13 biases") != std::string::npos;
  }));
  const test::GgufFile file(dir / "model.gguf");
  REQUIRE(report.tensors == fixture["tensors"].size());
  CHECK(file.tensors.size() == fixture["tensors"].size());
  for (const auto& [name, expected] : fixture["tensors"].items()) {
    CAPTURE(name);
    REQUIRE(file.tensors.contains(name));
    const test::GgufFile::Tensor& found = file.tensors.at(name);
    CHECK(found.type == expected[0]);
    CHECK(found.shape == expected[1].get<std::vector<uint64_t>>());
    if (name.ends_with(".bias")) {
      CHECK(found.bytes == std::string(found.bytes.size(), '\0'));
    } else {
      CHECK(fmt::format("{:016x}", test::fnv(found.bytes)) == expected[2]);
    }
  }
}

TEST_CASE("a block of Q8_0 whose scale fp16 rounds to 0 is zeros", "[gguf]") {
  const std::vector<float> tiny(32, 1e-42F);
  const std::vector<std::byte> bytes = encoded_q8_0(tiny, "x");
  CHECK(bytes == std::vector<std::byte>(34));
}

TEST_CASE("ends of texts and the chat template go into a GGUF file", "[gguf]") {
  const test::TempDir dir;
  const auto fixture = nlohmann::json::parse(test::read_file(kExportGolden / "io/gguf/llama.json"));
  write_model(fixture, dir.path());
  test::write_file(dir / "tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
  export_gguf(open_model_source(dir.path()), dir / "model.gguf", GgufType::f32);
  const auto metadata = test::GgufFile(dir / "model.gguf").metadata;
  CHECK(metadata.at("tokenizer.ggml.bos_token_id") == nlohmann::json{"UINT32", 1});
  CHECK(metadata.at("tokenizer.ggml.eos_token_id") == nlohmann::json{"UINT32", 2});
  CHECK(metadata.at("tokenizer.chat_template") == nlohmann::json{"STRING", "{{ messages }}"});
  CHECK(metadata.at("general.name") == nlohmann::json{"STRING", "model"});
}

TEST_CASE("a model that llama.cpp does not compute is refused", "[gguf]") {
  const test::TempDir dir;
  const auto write = [&](const char* model) {
    export_gguf(open_model_source(kExportGolden / "families" / model), dir / "a.gguf",
                GgufType::f32);
  };
  CHECK_THAT(message_of<CheckpointError>([&] { write("qwen3-bias-yarn"); }),
             Contains("llama.cpp has no architecture that computes this model"));
  CHECK_THAT(message_of<CheckpointError>([&] { write("llama-yarn"); }),
             Contains("YaRN with its usual factors only"));
  for (const char* model : {"qwen2", "qwen3"}) {  // llama.cpp knows no factors of RoPE there
    fs::copy(kExportGolden / "families" / model, dir / model);
    const std::string config = test::read_file(dir / model / "config.json");
    test::write_file(dir / model / "config.json",
                     with_field(config, "rope_parameters",
                                R"({"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0,
                                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                    "original_max_position_embeddings": 16})"));
    CHECK_THAT(message_of<CheckpointError>([&] {
                 export_gguf(open_model_source(dir / model), dir / "a.gguf", GgufType::f32);
               }),
               Contains("llama.cpp has no architecture that computes this model"));
  }
  CHECK_FALSE(fs::exists(dir / "a.gguf"));
}

}  // namespace
}  // namespace fp8train
