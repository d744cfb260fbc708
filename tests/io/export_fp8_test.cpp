// Model folders with weights in 8 bits: which tensors, codes and scales by the rule, what
// config.json says of them, and that folders that are not their model are refused.

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/export/export_folder.h"
#include "io/export/export_gguf.h"
#include "io/model_source.h"
#include "io/safetensors/tensor_source.h"
#include "numeric/convert.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;
namespace fs = std::filesystem;

fs::path fp8_source(const std::string& name) {
  return fs::path(FP8TRAIN_GOLDEN_DIR) / "families" / name;
}

ExportOptions cast(DType dtype, ScaleBlock block) {
  FileQuantization how;
  how.format.dtype = dtype;
  how.format.policy = ScalePolicy::current;
  how.format.block = block;
  return {.dtype = DType::bf16, .quantization = how};
}

nlohmann::json quantization_of(const fs::path& folder) {
  return nlohmann::json::parse(test::read_file(folder / "config.json")).at("quantization_config");
}

/// The tensors of a folder as they are stored: without a config.json codes are codes.
TensorSource stored_tensors(const fs::path& folder) {
  fs::rename(folder / "config.json", folder / "aside");
  TensorSource source(folder);
  fs::rename(folder / "aside", folder / "config.json");
  return source;
}

bool is_linear(const std::string& name) {
  return name.ends_with("_proj.weight");
}

/// codes * scale against the weights that were cast: the scale is amax / 448 of its block, and what
/// is read back is within half of E4M3's spacing.
void check_blocks(const TensorSource& original, const TensorSource& written,
                  const std::string& name, const std::string& suffix, int64_t height,
                  int64_t width) {
  const std::vector<int64_t> shape = original.find(name)->shape;
  const std::vector<float> values = original.read_f32(name, shape);
  const SafetensorsEntry& codes_entry = *written.find(name);
  REQUIRE(codes_entry.type.dtype == DType::e4m3);
  REQUIRE(codes_entry.shape == shape);
  const std::vector<char> codes = written.read_bytes(codes_entry);
  const int64_t across = (shape[1] + width - 1) / width;
  const SafetensorsEntry& scale_entry = *written.find(name + suffix);
  const std::vector<float> scales = written.read_f32(name + suffix, scale_entry.shape);
  std::vector<float> amax(scales.size(), 0.0F);
  const auto block_of = [&](int64_t i) {
    return static_cast<size_t>(i / shape[1] / height * across + i % shape[1] / width);
  };
  const auto count = static_cast<int64_t>(values.size());
  for (int64_t i = 0; i < count; ++i) {
    amax.at(block_of(i)) = std::max(amax.at(block_of(i)), std::abs(values[i]));
  }
  for (int64_t i = 0; i < count; ++i) {
    const float scale = scales[block_of(i)];
    REQUIRE(scale == Approx(amax[block_of(i)] / 448.0F).epsilon(1e-6));
    e4m3 code;
    std::memcpy(&code, &codes[static_cast<size_t>(i)], 1);
    const float allowed = std::max(std::abs(values[i]) / 16.0F, scale / 1024.0F);
    REQUIRE(std::abs(decode(code) * scale - values[i]) <= allowed * 1.0001F);
  }
}

TEST_CASE("fp8-block casts the linear layers as DeepSeek-V3's files have them", "[fp8]") {
  const std::string name = GENERATE("mistral", "qwen2-yarn-sharded", "qwen3");
  CAPTURE(name);
  const test::TempDir dir;
  const ExportReport report =
      export_folder(fp8_source(name), dir / "out", cast(DType::e4m3, per::block_128x128));
  const TensorSource original(fp8_source(name));
  const TensorSource written = stored_tensors(dir / "out");
  CHECK(report.quantization.tensors.size() == 14);
  CHECK(report.tensors == original.names().size());
  CHECK(written.names().size() == original.names().size() + 14);
  for (const std::string& tensor : original.names()) {
    CAPTURE(tensor);
    if (is_linear(tensor)) {
      check_blocks(original, written, tensor, "_scale_inv", 128, 128);
    } else {
      CHECK(written.find(tensor)->type.dtype == DType::bf16);
    }
  }
  const nlohmann::json config = quantization_of(dir / "out");
  CHECK(config == nlohmann::json{{"quant_method", "fp8"},
                                 {"fmt", "e4m3"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {128, 128}},
                                 {"modules_to_not_convert", {"lm_head"}}});
}

TEST_CASE("fp8-tensor is a folder of compressed-tensors", "[fp8]") {
  const test::TempDir dir;
  ExportOptions options = cast(DType::e4m3, per::tensor);
  options.quantization->exclude = {"*.mlp.down_proj.weight"};
  export_folder(fp8_source("qwen3"), dir / "out", options);
  const TensorSource original(fp8_source("qwen3"));
  const TensorSource written = stored_tensors(dir / "out");
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  CHECK(written.find(name + "_scale")->shape == std::vector<int64_t>{1});
  check_blocks(original, written, name, "_scale", 1 << 20, 1 << 20);
  const nlohmann::json config = quantization_of(dir / "out");
  CHECK(config["quant_method"] == "compressed-tensors");
  CHECK(config["format"] == "float-quantized");
  CHECK(config["ignore"] ==
        nlohmann::json{"lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"});
  const nlohmann::json group = config["config_groups"]["group_0"];
  CHECK(group["targets"] == nlohmann::json{"Linear"});
  CHECK(group["weights"]["strategy"] == "tensor");
  CHECK(group["weights"]["dynamic"] == false);
  CHECK(group["input_activations"]["strategy"] == "token");
  CHECK(group["input_activations"]["dynamic"] == true);
}

TEST_CASE("e2m1 is a folder of packed codes of compressed-tensors", "[fp8]") {
  const test::TempDir dir;
  const bool nvfp4 = GENERATE(true, false);
  ExportOptions options = cast(DType::e2m1, nvfp4 ? per::block_1x16 : per::block_1x32);
  options.quantization->format.scale_type = nvfp4 ? ScaleType::e4m3 : ScaleType::e8m0;
  const ExportReport report = export_folder(fp8_source("qwen3"), dir / "out", options);
  const TensorSource written = stored_tensors(dir / "out");
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  CHECK(written.find(name) == nullptr);
  CHECK(written.find(name + "_packed")->type.dtype == DType::u8);
  CHECK(written.find(name + "_packed")->shape == std::vector<int64_t>{48, 16});
  CHECK(written.find(name + "_scale")->type.dtype == (nvfp4 ? DType::e4m3 : DType::u8));
  CHECK(written.find(name + "_scale")->shape == std::vector<int64_t>{48, nvfp4 ? 2 : 1});
  CHECK((written.find(name + "_global_scale") != nullptr) == nvfp4);
  const nlohmann::json config = quantization_of(dir / "out");
  const nlohmann::json group = config["config_groups"]["group_0"];
  CHECK(config["format"] == (nvfp4 ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized"));
  CHECK(group["weights"]["num_bits"] == 4);
  CHECK(group["weights"]["group_size"] == (nvfp4 ? 16 : 32));
  CHECK(group["input_activations"].is_null());
  // Rows of 48 values are no whole blocks of 32.
  CHECK(report.quantization.tensors.size() == (nvfp4 ? 14 : 12));
  CHECK(nvfp4 == std::ranges::none_of(report.notes, [](const std::string& note) {
          return note.starts_with("2 weights are not cast, since their rows are no multiple of 32");
        }));
  CHECK(config["ignore"].size() == (nvfp4 ? 1 : 3));
}

TEST_CASE("a cast keeps other tensors in their type where none is asked for", "[fp8]") {
  const test::TempDir dir;
  export_folder(fp8_source("mistral"), dir / "wide", {.dtype = DType::f32});
  ExportOptions options = cast(DType::i8, per::row);
  options.dtype = {};
  options.max_shard_bytes = 20'000;
  export_folder(dir / "wide", dir / "out", options);
  CHECK(fs::exists(dir / "out/model.safetensors.index.json"));
  const TensorSource written = stored_tensors(dir / "out");
  CHECK(written.find("model.norm.weight")->type.dtype == DType::f32);
  CHECK(written.find("model.layers.0.mlp.up_proj.weight")->type.dtype == DType::i8);
  CHECK(written.find("model.layers.0.mlp.up_proj.weight_scale")->shape ==
        std::vector<int64_t>{48, 1});
  CHECK(quantization_of(dir / "out")["format"] == "int-quantized");
  CHECK_THAT(test::read_file(dir / "out/config.json"), Contains("\"dtype\": \"float32\""));
}

TEST_CASE("casts that no program reads are refused before anything is written", "[fp8]") {
  const test::TempDir dir;
  const auto refusal = [&](const char* model, const ExportOptions& options) {
    const std::string text =
        message_of<ConfigError>([&] { export_folder(fp8_source(model), dir / "out", options); });
    CHECK_FALSE(fs::exists(dir / "out"));
    return text;
  };
  CHECK_THAT(refusal("mistral", cast(DType::e5m2, per::tensor)), Contains("no program reads one"));
  CHECK_THAT(refusal("mistral", cast(DType::e4m3, per::block_1x128)),
             Contains("no program reads one"));
  // Of the model, not of the request: exit code 4, as for GGUF.
  CHECK_THAT(message_of<CheckpointError>([&] {
               export_folder(fp8_source("gpt2"), dir / "out",
                             cast(DType::e4m3, per::block_128x128));
             }),
             Contains("this model stores transformer.h.0.attn.c_attn.weight transposed") &&
                 Contains("--to gguf --dtype q8_0"));
  CHECK_FALSE(fs::exists(dir / "out"));
}

/// The qwen3 fixture with its tensors changed by `change`.
template <typename Change>
void write_changed(const fs::path& folder, const Change& change) {
  const TensorSource source(fp8_source("qwen3"));
  std::vector<std::vector<float>> memory;
  std::vector<TensorBytes> tensors;
  for (const std::string& name : source.names()) {
    const std::vector<int64_t>& shape = source.find(name)->shape;
    memory.push_back(source.read_f32(name, shape));
    tensors.push_back({name, DType::f32, shape, memory.back().data()});
  }
  change(tensors);
  write_safetensors(tensors, {}, folder / "model.safetensors");
  fs::copy_file(fp8_source("qwen3") / "config.json", folder / "config.json",
                fs::copy_options::overwrite_existing);
}

TEST_CASE("weights that are not finite are not cast", "[fp8]") {
  const test::TempDir dir;
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  for (const float value : {std::nanf(""), HUGE_VALF}) {
    std::vector<float> damaged;
    write_changed(dir.path(), [&](std::vector<TensorBytes>& tensors) {
      for (TensorBytes& tensor : tensors) {
        if (tensor.name != name) continue;
        damaged.assign(static_cast<const float*>(tensor.data),
                       static_cast<const float*>(tensor.data) + tensor.shape[0] * tensor.shape[1]);
        damaged[3] = value;
        tensor.data = damaged.data();
      }
    });
    for (const ScaleBlock block : {per::tensor, per::block_128x128}) {
      CHECK_THAT(message_of<CheckpointError>(
                     [&] { export_folder(dir.path(), dir / "out", cast(DType::e4m3, block)); }),
                 Contains(name));
      CHECK_FALSE(holds_model_files(dir / "out"));
    }
  }
}

TEST_CASE("the model of a wrapper and a base model are exported under the model's names", "[fp8]") {
  const test::TempDir dir;
  const auto rename = [&](const std::string& folder, const std::string& before, size_t left_out) {
    fs::create_directory(dir / folder);
    write_changed(dir / folder, [&](std::vector<TensorBytes>& tensors) {
      for (TensorBytes& tensor : tensors) {
        tensor.name = before + tensor.name.substr(left_out);
      }
    });
  };
  rename("plain", "", 0);
  rename("compiled", "_orig_mod.", 0);
  rename("parallel", "module.", 0);
  rename("base", "", std::string("model.").size());
  rename("compiled_base", "_orig_mod.", std::string("model.").size());
  ExportOptions narrow = cast(DType::e4m3, per::tensor);
  narrow.quantization->exclude = {"model.layers.1.*"};
  const std::pair<const char*, ExportOptions> forms[] = {
      {"bf16", {.dtype = DType::bf16}},        {"as_it_is", {}},
      {"shards", {.max_shard_bytes = 20'000}}, {"fp8-block", cast(DType::e4m3, per::block_128x128)},
      {"int8", cast(DType::i8, per::row)},     {"fp8-tensor", narrow}};
  for (const auto& [form, options] : forms) {
    const fs::path expected = dir / (std::string("plain_") + form);
    const ExportReport plain = export_folder(dir / "plain", expected, options);
    const TensorSource tensors = stored_tensors(expected);
    CHECK(tensors.find("model.norm.weight") != nullptr);
    for (const std::string other : {"compiled", "parallel", "base", "compiled_base"}) {
      CAPTURE(form, other);
      const fs::path to = dir / (other + "_" + form);
      const ExportReport report = export_folder(dir / other, to, options);
      CHECK(report.quantization.tensors.size() == plain.quantization.tensors.size());
      const TensorSource written = stored_tensors(to);
      REQUIRE(written.names() == tensors.names());
      for (const std::string& name : tensors.names()) {
        CAPTURE(name);
        REQUIRE(written.find(name)->type.name == tensors.find(name)->type.name);
        REQUIRE(written.read_bytes(*written.find(name)) == tensors.read_bytes(*tensors.find(name)));
      }
      CHECK(test::read_file(to / "config.json") == test::read_file(expected / "config.json"));
    }
  }
  // Files for other programs.
  const auto gguf = [&](const std::string& folder) {
    export_gguf(open_model_source(dir / folder), dir / "model.gguf", GgufType::q8_0);
    return test::read_file(dir / "model.gguf");
  };
  CHECK(gguf("compiled") == gguf("plain"));
  CHECK(gguf("compiled_base") == gguf("plain"));
}

TEST_CASE("a folder that is not its model is not exported", "[compare]") {
  const test::TempDir dir;
  const auto refusal = [&](const auto& change) {
    write_changed(dir.path(), change);
    const std::string text = message_of<CheckpointError>(
        [&] { export_folder(dir.path(), dir / "out", {.dtype = DType::f32}); });
    CHECK_FALSE(fs::exists(dir / "out"));
    return text;
  };
  const auto find = [](std::vector<TensorBytes>& tensors, const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const TensorBytes& tensor) { return tensor.name == name; });
  };
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  CHECK_THAT(refusal([&](auto& tensors) { tensors.erase(find(tensors, up)); }),
             Contains("1 missing: " + up) && Contains("nothing is written"));
  CHECK_THAT(refusal([&](auto& tensors) { find(tensors, up)->name = "model.layers.2.other"; }),
             Contains("1 missing: " + up) && Contains("1 unexpected: model.layers.2.other"));
  CHECK_THAT(refusal([&](auto& tensors) {
               find(tensors, up)->shape = {32, 48};
             }),
             Contains("1 of another shape: " + up + " is [32, 48], expected [48, 32]"));
  // A tied head and buffers of older versions follow from config.json.
  write_changed(dir.path(), [&](auto& tensors) {
    TensorBytes head = *find(tensors, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    tensors.push_back(head);
  });
  CHECK(open_model_source(dir.path()).tensors.size() == 24);
}

}  // namespace
}  // namespace fp8train
