// Folders whose weights are codes with scales: the values that compressed-tensors reads from its
// own folders (tests/golden/make_encoded.py), those of our own exports, and what is refused.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/export/export_folder.h"
#include "io/model_source.h"
#include "io/safetensors/tensor_source.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "tensor/tensor_format.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;
namespace fs = std::filesystem;

const fs::path kGolden = FP8TRAIN_GOLDEN_DIR;
const std::vector<int64_t> kShape = {24, 64};

TEST_CASE("codes of compressed-tensors are read as it reads them", "[io]") {
  const std::string name =
      GENERATE("fp8-tensor", "fp8-channel", "fp8-block", "int8-channel", "nvfp4", "mxfp4", "mxfp8");
  CAPTURE(name);
  const fs::path folder = kGolden / "io/encoded" / name;
  const TensorSource source(folder);
  CHECK(source.names() == std::vector<std::string>{"layer.weight"});
  CHECK(source.find("layer.weight")->shape == kShape);
  const std::vector<float> expected =
      TensorSource(folder / "expected.safetensors").read_f32("layer.weight", kShape);
  const std::vector<float> values = source.read_f32("layer.weight", kShape);
  // It divides scales of NVFP4 by that of the tensor in bf16.
  const float allowed = name == "nvfp4" ? 0x1p-8F : 0.0F;
  for (size_t i = 0; i < values.size(); ++i) {
    REQUIRE(std::abs(values[i] - expected[i]) <= allowed * std::abs(expected[i]));
  }
  CHECK(std::ranges::count(values, 0.0F) < 800);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {63, 130}, {1535, 1}}) {
    const auto part = source.read_f32("layer.weight", kShape, first, count);
    CHECK(std::equal(part.begin(), part.end(), values.begin() + first));
  }
  const std::vector<char> bytes = source.read_bytes(*source.find("layer.weight"));
  CHECK(std::memcmp(bytes.data(), values.data(), bytes.size()) == 0);
}

/// A folder with one weight, written tensor by tensor.
struct Folder {
  void write(const std::vector<TensorBytes>& tensors, const std::string& quantization) const {
    write_safetensors(tensors, {}, dir / "model.safetensors");
    test::write_file(dir / "config.json", R"({"quantization_config":)" + quantization + "}");
  }
  std::string refusal() const {
    return message_of<CheckpointError>([&] { const TensorSource source(dir.path()); });
  }
  test::TempDir dir;
};

TEST_CASE("a folder of ModelOpt is read as that of compressed-tensors which it becomes", "[io]") {
  // compressed-tensors: entrypoints/convert/converters/modelopt_nvfp4.py renames and inverts.
  const SafetensorsFile nvfp4(kGolden / "io/encoded/nvfp4/model.safetensors");
  const auto bytes_of = [&](const char* name) {
    std::vector<char> bytes(nvfp4.find(name)->bytes());
    nvfp4.read(*nvfp4.find(name), bytes.data());
    return bytes;
  };
  const auto codes = bytes_of("layer.weight_packed");
  const auto scales = bytes_of("layer.weight_scale");
  const float above = 1.0F / nvfp4.read_f32(*nvfp4.find("layer.weight_global_scale")).front();
  const Folder folder;
  folder.write({{"layer.weight", DType::u8, {24, 32}, codes.data()},
                {"layer.weight_scale", DType::e4m3, {24, 4}, scales.data()},
                {"layer.weight_scale_2", DType::f32, {}, &above},
                {"layer.input_scale", DType::f32, {}, &above},
                {"layer.bias", DType::f32, {}, &above}},
               R"({"quant_method":"modelopt","quant_algo":"NVFP4"})");
  const TensorSource source(folder.dir.path());
  CHECK(source.names() == std::vector<std::string>{"layer.bias", "layer.weight"});
  CHECK(source.read_f32("layer.weight", kShape) ==
        TensorSource(kGolden / "io/encoded/nvfp4").read_f32("layer.weight", kShape));
}

TEST_CASE("codes that are not read are refused by name", "[io]") {
  const Folder folder;
  const std::vector<uint8_t> bytes(256 * 256, 0x38);  // e4m3: 1
  const std::vector<float> scales(64, 2.0F);
  const TensorBytes codes = {"layer.weight", DType::e4m3, {200, 130}, bytes.data()};
  const auto scale = [&](std::vector<int64_t> shape) {
    return TensorBytes{"layer.weight_scale_inv", DType::f32, std::move(shape), scales.data()};
  };
  const char* fp8 = R"({"quant_method":"fp8","weight_block_size":[128,128]})";
  folder.write({codes, scale({2, 2})}, fp8);
  CHECK(TensorSource(folder.dir.path()).read_f32("layer.weight", {200, 130}) ==
        std::vector<float>(200 * 130, 2.0F));
  folder.write({codes, scale({2, 3})}, fp8);
  CHECK_THAT(folder.refusal(), Contains("'layer.weight' has scales of shape [2, 3], which are not "
                                        "one for each block of 128x128 of [200, 130]"));
  folder.write({codes}, fp8);
  CHECK_THAT(folder.refusal(), Contains("'layer.weight' is F8_E4M3 without scales"));
  folder.write({codes, scale({2, 2})}, R"({"quant_method":"fp8","weight_block_size":[0,128]})");
  CHECK_THAT(folder.refusal(), Contains("weight_block_size is [0,128]"));
  folder.write({codes, scale({1})}, R"({"quant_method":"gptq","bits":4})");
  CHECK_THAT(folder.refusal(),
             Contains("weights of quant_method 'gptq' are not read (fp8, compressed-tensors"));
  const auto group = [](const std::string& weights) {
    return R"({"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":)" +
           weights + "}}}";
  };
  folder.write({codes, scale({1})}, group(R"({"num_bits":4,"type":"int"})"));
  CHECK_THAT(folder.refusal(), Contains("group_0: weights of 4 bits (int) are not read"));
  folder.write({codes, scale({1})}, group(R"({"num_bits":8,"type":"int","symmetric":false})"));
  CHECK_THAT(folder.refusal(), Contains("zero points"));
  TensorBytes packed = codes;
  packed.name = "layer.weight_packed";
  packed.dtype = DType::i32;
  packed.shape = {8, 8};
  folder.write({packed, scale({1})}, group(R"({"num_bits":8,"type":"int"})"));
  CHECK_THAT(folder.refusal(), Contains("'layer.weight' is packed in I32, which is not read"));
}

/// The tensors of a fixture, changed by `change`, in a folder with the fixture's config.json.
template <typename Change>
void write_changed(const fs::path& folder, const std::string& fixture, const Change& change) {
  const fs::path from = kGolden / "io/encoded" / fixture;
  const SafetensorsFile file(from / "model.safetensors");
  std::vector<std::vector<char>> bytes;
  std::vector<TensorBytes> tensors;
  for (const SafetensorsEntry& entry : file.header().entries) {
    file.read(entry, bytes.emplace_back(entry.bytes()).data());
    tensors.push_back({entry.name, *entry.type.dtype, entry.shape, bytes.back().data()});
  }
  change(tensors);
  write_safetensors(tensors, {}, folder / "model.safetensors");
  fs::copy_file(from / "config.json", folder / "config.json", fs::copy_options::overwrite_existing);
}

TEST_CASE("scales that would change values without a word are refused", "[io]") {
  const test::TempDir dir;
  const auto refusal = [&](const std::string& fixture, const auto& change) {
    write_changed(dir.path(), fixture, change);
    return message_of<CheckpointError>(
        [&] { TensorSource(dir.path()).read_f32("layer.weight", kShape); });
  };
  const auto with_type = [](const char* name, DType dtype) {
    return [=](std::vector<TensorBytes>& tensors) {
      for (TensorBytes& tensor : tensors) {
        if (tensor.name == name) tensor.dtype = dtype;
      }
    };
  };
  CHECK_THAT(
      refusal("nvfp4",
              [](std::vector<TensorBytes>& tensors) {
                std::erase_if(tensors, [](const TensorBytes& tensor) {
                  return tensor.name == "layer.weight_global_scale";
                });
              }),
      Contains("'layer.weight' has e2m1 codes with F8_E4M3 scales for 1x16, which no program "
               "writes; use the folder that it was cast from"));
  CHECK_THAT(refusal("nvfp4", with_type("layer.weight_scale", DType::u8)),
             Contains("e2m1 codes with U8 scales for 1x16 under one of the tensor"));
  CHECK_THAT(refusal("mxfp4", with_type("layer.weight_scale", DType::e4m3)),
             Contains("e2m1 codes with F8_E4M3 scales for 1x32"));
  const float bad = GENERATE(-1.0F, HUGE_VALF, std::nanf(""));
  for (const char* fixture : {"fp8-tensor", "nvfp4"}) {
    const bool is_fp4 = fixture == std::string("nvfp4");
    const std::string name = is_fp4 ? "layer.weight_global_scale" : "layer.weight_scale";
    CHECK_THAT(refusal(fixture,
                       [&](std::vector<TensorBytes>& tensors) {
                         for (TensorBytes& tensor : tensors) {
                           if (tensor.name == name) tensor.data = &bad;
                         }
                       }),
               Contains("scale 0 of '" + name + "' is "));
  }
}

TEST_CASE("a folder that was exported in codes is a model again", "[io]") {
  const auto [dtype, block, scale] = GENERATE(
      table<DType, ScaleBlock, ScaleType>({{DType::e4m3, per::block_128x128, ScaleType::f32},
                                           {DType::e4m3, per::tensor, ScaleType::f32},
                                           {DType::i8, per::row, ScaleType::f32},
                                           {DType::e2m1, per::block_1x16, ScaleType::e4m3},
                                           {DType::e2m1, per::block_1x32, ScaleType::e8m0}}));
  const fs::path original = kGolden / "families/qwen3";
  const test::TempDir dir;
  FileQuantization how;
  how.format.dtype = dtype;
  how.format.policy = ScalePolicy::current;
  how.format.block = block;
  how.format.scale_type = scale;
  CAPTURE(describe(how.format));
  export_folder(original, dir / "codes", {.dtype = DType::bf16, .quantization = how});
  const ModelSource encoded = open_model_source(dir / "codes");
  REQUIRE(!encoded.config.training_notes.empty());
  CHECK_THAT(encoded.config.training_notes.back(), Contains("codes with scales"));
  how.dequantize = true;
  export_folder(original, dir / "plain", {.dtype = DType::f32});
  quantize_file(dir / "plain/model.safetensors", dir / "read.safetensors", how);
  const TensorSource read(dir / "read.safetensors");
  const ModelSource plain = open_model_source(dir / "plain");
  int changed = 0;
  for (const ModelTensor& tensor : encoded.tensors) {
    CAPTURE(tensor.piece.name);
    const std::vector<float> values = encoded.read(tensor);
    const bool same = values == plain.read(tensor);
    changed += same ? 0 : 1;
    CHECK((same || values == read.read_f32(tensor.piece.name, tensor.shape)));
  }
  CHECK(changed == (block == per::block_1x32 ? 12 : 14));
  // An export of it is plain.
  export_folder(dir / "codes", dir / "again", {.dtype = DType::bf16});
  CHECK_THAT(test::read_file(dir / "again/config.json"), !Contains("quantization_config"));
  CHECK(TensorSource(dir / "again").names().size() == plain.source.names().size());
}

}  // namespace
}  // namespace fp8train
