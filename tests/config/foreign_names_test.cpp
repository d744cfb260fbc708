// Keys of other programs that are unknown here, and files in a syntax that is not read.

#include <catch2/catch.hpp>

#include "base/text.h"
#include "config/fields/field_table.h"
#include "config/foreign_names.h"
#include "config/load_support.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::error_of;
using test::kBase;

TEST_CASE("each name of another program leads to a key, or to what there is instead") {
  for (const ForeignName& entry : foreign_names()) {
    for (std::string name : split(entry.names, ' ')) {
      CAPTURE(name);
      if (name.ends_with('*')) {
        name.pop_back();
      }
      REQUIRE(find_foreign_name(name) == &entry);  // no other entry has it
      CHECK_FALSE(std::ranges::any_of(field_table(), [&](const Field& field) {
        return field.key == name;  // it would never be looked up
      }));
      // In a section, where a key that DeepSpeed has at the top is as unknown as any other.
      const std::string error = error_of(kBase, {"sample." + name + "=8"});
      CHECK_THAT(error, Contains(name + ": unknown key; "));
      if (!entry.not_here.empty()) {
        CHECK(entry.key.empty());
        CHECK(split(replaced(std::string(entry.not_here), "; ", "\n"), '\n').size() == 2);
        CHECK_THAT(error, Contains(std::string(entry.not_here)));
      } else if (entry.key.find(' ') == std::string_view::npos) {
        REQUIRE(find_field(entry.key) != nullptr);
        CHECK_THAT(error, Contains(std::string(entry.key.substr(entry.key.rfind('.') + 1))));
      } else {
        CHECK_THAT(error, Contains("; use " + std::string(entry.key)));
      }
    }
  }
}

TEST_CASE("a wish is recognized in any section and spelling, with a part of the name") {
  for (const char* key : {"adapter", "LoRA", "model.peft_config"}) {
    CAPTURE(key);
    CHECK_THAT(error_of(kBase, {std::string(key) + "=8"}), Contains("take model.lora with rank"));
  }
  CHECK_THAT(error_of(kBase, {"lora_alpha=8"}), Contains("belongs to `model.lora` as alpha"));
  CHECK_THAT(error_of(kBase, {"model.lora.rank=0", "model.lora.alpha=8"}),
             Contains("model.lora.alpha: has no effect without model.lora.rank"));
  CHECK_THAT(error_of(kBase, {"parallelism.context-parallel-size=2"}),
             Contains("did you mean \"context\"?"));
  CHECK_THAT(error_of(kBase, {"training.tensor_model_parallel_size=2"}),
             Contains("belongs to `parallelism` as tensor"));
  CHECK_THAT(error_of(kBase, {"logging.wandb=true"}),
             Contains("to_wandb.py") && Contains("docs/reference/metrics.md"));
  CHECK_THAT(error_of(kBase, {"activation_checkpoint.mode=full"}),
             Contains("`activation_checkpoint` belongs to `model` as recompute"));
}

TEST_CASE("TOML and Python are named") {
  for (const char* text : {"# a\n\n[job]\ndump_folder = \"x\"\n", "batch_size = 12\n",
                           "  [[a.b]]\r\nc = 1\n", "out_dir='out'\n"}) {
    CAPTURE(text);
    CHECK_THAT(error_of(text), Contains("run.yaml: this is TOML or Python, which is not read"));
  }
  for (const char* text : {"[a, b]", "[a", "\"a=b\": 1", "a: b=c", "=", "{a=b: 1}"}) {
    CAPTURE(text);
    CHECK_THAT(error_of(text), !Contains("TOML"));
  }
}

TEST_CASE("an address in place of a file is refused with the command that fetches it") {
  const auto error = [](const std::string& set) { return error_of(kBase, {set}); };
  CHECK_THAT(
      error("data.train=s3://b/x.txt"),
      Contains("s3://b/x.txt is an address") && Contains("`aws s3 cp --recursive ADDRESS FOLDER`"));
  CHECK_THAT(error("data.train=[{path: \"hf://datasets/a/b\"}]"),
             Contains("`hf download NAME --repo-type dataset --local-dir FOLDER`"));
  CHECK_THAT(error("model.from=https://huggingface.co/a/b"),
             Contains("`hf download NAME --local-dir FOLDER`"));
  CHECK_THAT(error("data.val=https://a.org/b.txt"), Contains("`curl -LO ADDRESS`"));
  CHECK_THAT(error("data.val=abfs://a/b"), Contains("only files of this machine are read here"));
  for (const char* address : {"abfs://a/b", "s3://b/runs", "hf://datasets/a/b"}) {
    for (const char* key : {"output_dir", "comm.bootstrap_file"}) {
      CHECK_THAT(error(std::string(key) + "=" + address),
                 Contains("only files of this machine are written here; name a path, and send it "
                          "there afterwards") &&
                     !Contains("fetch") && !Contains("download"));
    }
  }
  CHECK_THAT(error("output_dir=s3://b/runs"), Contains("`aws s3 cp --recursive FOLDER ADDRESS`"));
  CHECK_THAT(error("data.train=a:/b"), !Contains("is an address"));
}

}  // namespace
}  // namespace fp8train
