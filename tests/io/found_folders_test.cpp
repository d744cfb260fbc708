// Model folders as people have them: heads of their own, wrapped names, files that are not there.

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/tokenizer.h"
#include "io/hf_config.h"
#include "io/model_source.h"
#include "io/safetensors/tensor_source.h"
#include "support/files.h"
#include "support/hf_folder.h"
#include "support/small_model.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::message_of;

ModelConfig tied_llama() {
  ModelConfig model = test::small_llama_model();
  model.tie_word_embeddings = true;
  return model;
}

/// Writes all tensors of the model, and the ones in `more`. `rename` gives the name in the file.
struct Folder {
  test::TempDir dir;
  std::vector<std::vector<float>> values;

  std::vector<float> numbers(const std::vector<int64_t>& shape, float first) {
    size_t count = 1;
    for (const int64_t extent : shape) {
      count *= static_cast<size_t>(extent);
    }
    return std::vector<float>(count, first);
  }

  void write(const ModelConfig& model, const std::function<std::string(std::string)>& rename,
             float head) {
    std::vector<TensorBytes> tensors;
    values.clear();
    values.reserve(100);
    for (const ModelTensor& tensor : model_tensors(model)) {
      values.push_back(numbers(tensor.shape, 0.25F));
      tensors.push_back(
          {rename(tensor.piece.name), DType::f32, tensor.shape, values.back().data()});
    }
    if (head != 0 && model.tie_word_embeddings) {
      values.push_back(numbers({model.vocab_size, model.hidden_size}, 0.25F));
      values.back().back() = head;
      tensors.push_back({rename("lm_head.weight"),
                         DType::f32,
                         {model.vocab_size, model.hidden_size},
                         values.back().data()});
    }
    test::write_hf_folder(dir.path(), model, tensors);
  }
};

std::string same(std::string name) {
  return name;
}

TEST_CASE("a head of its own unties the embedding, an equal or missing one does not") {
  Folder folder;
  folder.write(tied_llama(), same, 0);
  CHECK(read_hf_config(folder.dir.path()).model.tie_word_embeddings);
  folder.write(tied_llama(), same, 0.25F);
  CHECK(read_hf_config(folder.dir.path()).model.tie_word_embeddings);
  CHECK(open_model_source(folder.dir.path()).tensors.size() == model_tensors(tied_llama()).size());
  folder.write(tied_llama(), same, 0.5F);  // its last value alone differs
  const HfConfig untied = read_hf_config(folder.dir.path());
  CHECK_FALSE(untied.model.tie_word_embeddings);
  REQUIRE(untied.notes.size() == 1);
  CHECK_THAT(untied.notes.front(), Contains("lm_head.weight has other values than the embedding"));
  const ModelSource own = open_model_source(folder.dir.path());
  REQUIRE(own.tensors.back().piece.name == "lm_head.weight");
  CHECK(own.read(own.tensors.back()).back() == 0.5F);
  // With the wrapper's names too.
  folder.write(
      tied_llama(), [](const std::string& name) { return "module." + name; }, 0.5F);
  CHECK_FALSE(read_hf_config(folder.dir.path()).model.tie_word_embeddings);
  // Without weights there is a configuration.
  fs::remove(folder.dir / "model.safetensors");
  CHECK(read_hf_config(folder.dir.path()).model.tie_word_embeddings);
}

TEST_CASE("equality of tensors of one source is that of their values") {
  const test::TempDir dir;
  std::vector<float> a((size_t{1} << 18) + 3, 1.0F), b = a;
  b.back() = 2;  // in the second part that is compared
  const uint16_t ones[] = {0x3F80, 0x3F80};
  const float one[] = {1, 1};
  const auto count = static_cast<int64_t>(a.size());
  write_safetensors({{"a", DType::f32, {count}, a.data()},
                     {"b", DType::f32, {count}, b.data()},
                     {"c", DType::f32, {count}, a.data()},
                     {"half", DType::bf16, {2}, ones},
                     {"whole", DType::f32, {2}, one},
                     {"column", DType::f32, {2, 1}, one}},
                    {}, dir / "model.safetensors");
  const TensorSource source(dir.path());
  const auto equal = [&](const char* x, const char* y) {
    return source.equal(*source.find(x), *source.find(y));
  };
  CHECK(equal("a", "c"));
  CHECK_FALSE(equal("a", "b"));
  CHECK(equal("half", "whole"));
  CHECK_FALSE(equal("whole", "column"));
}

TEST_CASE("a prefix that all names share is left out") {
  const ModelConfig model = tied_llama();
  for (const std::string prefix : {"_orig_mod.", "module.", "module._orig_mod.", ""}) {
    CAPTURE(prefix);
    Folder folder;
    folder.write(
        model, [&](const std::string& name) { return prefix + name; }, 0.25F);
    const ModelSource source = open_model_source(folder.dir.path());
    CHECK(source.read(source.tensors.front()).front() == 0.25F);
    CHECK(source.source.find("model.norm.weight") != nullptr);
    CHECK(TensorSource(folder.dir.path()).unwrapped(prefix + "x") == "x");
    // A base model's names have none.
    folder.write(
        model, [&](const std::string& name) { return prefix + name.substr(6); }, 0);
    CHECK(open_model_source(folder.dir.path()).tensors.size() == model_tensors(model).size());
  }
  // One tensor without it: the names are not those of a wrapped model.
  Folder folder;
  folder.write(
      model,
      [](const std::string& name) {
        return name == "model.norm.weight" ? name : "_orig_mod." + name;
      },
      0);
  CHECK_THROWS_AS(open_model_source(folder.dir.path()), CheckpointError);
}

TEST_CASE("of one file and an index the file counts, as in transformers") {
  const test::TempDir dir;
  const float one = 1, two = 2;
  write_safetensors({{"w", DType::f32, {1}, &one}}, {}, dir / "model.safetensors");
  write_safetensors({{"w", DType::f32, {1}, &two}}, {}, dir / "model-00001-of-00001.safetensors");
  test::write_file(dir / "model.safetensors.index.json",
                   R"({"weight_map":{"w":"model-00001-of-00001.safetensors"}})");
  CHECK(TensorSource(dir.path()).read_f32("w", {1}).front() == 1);
  fs::remove(dir / "model.safetensors");
  CHECK(TensorSource(dir.path()).read_f32("w", {1}).front() == 2);
}

TEST_CASE("files of a model that are links to nothing are not passed over") {
  const float one = 1;
  for (const char* name : {"model.safetensors", "config.json"}) {  // it may say that w is codes
    const test::TempDir dir;
    write_safetensors({{"w", DType::f32, {1}, &one}}, {}, dir / "model.safetensors");
    fs::remove(dir / name);
    fs::create_symlink("../blobs/0", dir / name);
    CHECK_THAT(message_of<CheckpointError>([&] { TensorSource(dir.path()); }),
               Contains((dir / name).string() + ": it is a link to ../blobs/0"));
  }
  const test::TempDir dir;
  fs::create_symlink("../blobs/0", dir / "generation_config.json");
  CHECK_THAT(message_of<CheckpointError>([&] { read_end_tokens(dir.path(), {}); }),
             Contains("generation_config.json: it is a link"));
}

TEST_CASE("pointers of git-lfs are named") {
  const test::TempDir dir;
  constexpr const char* kPointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json", "data.jsonl"}) {
    test::write_file(dir / name, kPointer);
  }
  CHECK_THAT(message_of<CheckpointError>([&] { TensorSource(dir.path()); }),
             Contains("model.safetensors: a pointer of git-lfs") && Contains("git lfs pull"));
  CHECK_THAT(message_of<CheckpointError>([&] { read_hf_config(dir.path()); }),
             Contains("config.json: a pointer of git-lfs"));
  CHECK_THAT(message_of<DataError>([&] { open_tokenizer(dir.path()); }),
             Contains("tokenizer.json: a pointer of git-lfs"));
  CHECK_THAT(message_of<DataError>([&] { fp8train::format_of(dir / "data.jsonl", "auto"); }),
             Contains("data.jsonl: a pointer of git-lfs"));
}

TEST_CASE("folders that are no model folder are named") {
  const auto text = [](const std::vector<std::string>& names) {
    const test::TempDir dir;
    for (const std::string& name : names) {
      fs::create_directories((dir / name).parent_path());
      test::write_file(dir / name, name == "refs/main" ? "b2" : "x");
    }
    std::string what = describe_other_folder(dir.path());
    const size_t at = what.find(dir.path().string());
    return at == std::string::npos ? what : what.replace(at, dir.path().string().size(), "DIR");
  };
  CHECK(text({}).empty());
  CHECK(text({"model.safetensors", "pytorch_model.bin", "tokenizer.json"}).empty());
  CHECK(text({"snapshots/a1/config.json", "blobs/x"}) ==
        "it is a folder of the Hub's cache: name DIR/snapshots/a1");
  CHECK(text({"snapshots/a1/config.json", "snapshots/b2/config.json", "refs/main"}) ==
        "it is a folder of the Hub's cache: name DIR/snapshots/b2");
  CHECK(text({"snapshots/a1/config.json", "snapshots/b2/config.json", "blobs/x"}) ==
        "it is a folder of the Hub's cache: name one of the folders in its snapshots");
  CHECK_THAT(text({"adapter_config.json", "adapter_model.safetensors"}),
             Contains("holds an adapter") && Contains("model.lora.from"));
  CHECK_THAT(text({"config.json", "model-00001-of-00002.safetensors"}),
             Contains("model-00001-of-00002.safetensors, but not model.safetensors.index.json"));
  CHECK_THAT(text({"config.json", "weights.safetensors"}),
             Contains("it holds weights.safetensors") && Contains("rename"));
  CHECK_THAT(text({"pytorch_model.bin"}),
             Contains("it holds pytorch_model.bin") && Contains("save_pretrained"));
  CHECK_THAT(text({"q4.gguf"}), Contains("it holds q4.gguf"));
}

}  // namespace
}  // namespace fp8train
