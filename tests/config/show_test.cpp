#include "config/show.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "config/fields/field_table.h"
#include "config/load_support.h"
#include "config/presets.h"
#include "ops/exchange/wire_formats.h"
#include "ops/gemm/gemm_support.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "support/token_shard.h"
#include "tensor/tensor_format.h"

namespace fp8train {
namespace {

using test::kBase;
using test::load_text;

/// Loads what show prints, in both forms, and compares.
void check_round_trip(const Settings& settings) {
  for (const bool resolved : {true, false}) {
    for (const bool comments : {true, false}) {
      const std::string text = show_settings(settings, resolved, comments);
      CAPTURE(text);
      CHECK(load_text(text) == settings);
    }
  }
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Of the section `precision`, or of one of its keys.
std::string doc_of(const std::string& key) {
  if (const Field* field = find_field(key)) {
    return field->doc;
  }
  for (const SectionDoc& section : section_docs()) {
    if (section.name == key) {
      return section.doc;
    }
  }
  return "";
}

TEST_CASE("the texts of formats name all that there are") {
  const std::string doc = doc_of("precision");
  for (const DTypeFacts& facts : kDTypes) {
    CAPTURE(facts.name);
    bool is_element = true;
    try {
      parse_format(facts.name);
    } catch (const ConfigError&) {
      is_element = false;
    }
    const bool is_named = doc.find(std::string(facts.name) + ",") != std::string::npos ||
                          doc.find(std::string(facts.name) + ")") != std::string::npos;
    CHECK((is_named || !is_element));
    CHECK((is_element || facts.type == DType::e8m0 || !is_named));
  }
  for (const ops::BlockPair& pair : ops::block_pairs()) {
    CHECK_THAT(doc, Catch::Contains(name_of(pair.a)) && Catch::Contains(name_of(pair.b)));
  }
  for (const int group : ops::kWireGroups) {
    CHECK_THAT(doc_of("precision.gradient_wire"), Catch::Contains(name_of(per::group(group))));
  }
}

TEST_CASE("every preset survives show and load") {
  for (const Preset& preset : presets()) {
    check_round_trip(
        load_text("data: {train: a}\ntraining: {max_steps: 7}\n", {"model.preset=" + preset.name}));
  }
}

TEST_CASE("the example configurations of this program load and survive show and load") {
  for (const char* name : {"laptop.yaml", "llama_8b_h100.yaml"}) {
    CAPTURE(name);
    LoadRequest request;
    request.path = (std::filesystem::path(FP8TRAIN_SOURCE_DIR) / "configs" / name).string();
    check_round_trip(load_settings(request));
  }
}

TEST_CASE("a model that is trained already has a rate of its own, unless one is given") {
  const test::TempDir folder;
  const auto load = [&](std::vector<std::string> more) {
    more.push_back("model={from: " + folder.path().string() + "}");
    return load_text("data: {train: a}\ntraining: {max_steps: 200}\n", more);
  };
  CHECK(load({}).optimizer.lr == 1e-5);
  CHECK(load({}).scheduler.warmup_steps == 6);
  CHECK(load({"scheduler.warmup_steps=9"}).optimizer.lr == 1e-5);
  CHECK(load({"scheduler.warmup_steps=9"}).scheduler.warmup_steps == 9);
  const Settings given = load({"optimizer.lr=0.001"});
  CHECK(given.optimizer.lr == 0.001);
  CHECK(given.scheduler.warmup_steps == 0);
  CHECK(load({"optimizer.name=sgd"}).optimizer.lr == OptimizerSettings().lr);
  for (const char* const rate : {"3e-4", "1e-5", "0.001"}) {
    for (const char* const warmup : {"0", "6", "9"}) {
      check_round_trip(load(
          {std::string("optimizer.lr=") + rate, std::string("scheduler.warmup_steps=") + warmup}));
    }
  }
  check_round_trip(load({}));
}

TEST_CASE("a model's folder has the usual tokenizer and the longest usual sequence") {
  const test::TempDir folder;
  const std::string from = folder.path().string();
  const std::vector<std::string> sets = {"model={from: " + from + "}", "training.max_steps=2"};
  const auto load = [&](std::vector<std::string> more) {
    more.insert(more.end(), sets.begin(), sets.end());
    return load_text("data: {train: a}\n", more);
  };
  test::write_file(folder.path() / "config.json", R"({"max_position_embeddings": 64})");
  CHECK(load({}).data.tokenizer == "byte");
  test::write_file(folder.path() / "tokenizer.model", "");
  const Settings usual = load({});
  CHECK(usual.data.tokenizer == from);
  CHECK(usual.step.seq_length == 64);
  CHECK(usual.notes.lines ==
        std::vector<std::string>{
            "data.tokenizer is not given: the tokenizer of model.from (" + from + ") is used",
            "data.seq_length is not given: the context length of model.from (64) is used",
            "optimizer.lr is not given: 1e-05, after 1 step of warm-up, is used for the model of "
            "model.from"});
  check_round_trip(usual);
  const Settings given = load({"data.tokenizer=byte", "data.seq_length=32", "optimizer.lr=3e-4"});
  CHECK(given.data.tokenizer == "byte");
  CHECK(given.step.seq_length == 32);
  CHECK(given.notes.lines.empty());
  check_round_trip(given);
  test::write_shard(folder.path() / "ids.bin", std::vector<int32_t>{1, 2, 3}, 4);
  const std::string ids = (folder.path() / "ids.bin").string();
  CHECK(load({"data.train=[{path: " + ids + "}]"}).data.tokenizer == "byte");
}

TEST_CASE("settings of every kind survive show and load") {
  check_round_trip(load_text(
      kBase, {"precision={plan: te-delayed, margin: 3, exempt: [\"*.a\", b]}",
              "training.max_tokens=3M", "training.max_time=90.5", "training.global_batch_size=64",
              "output_dir=\"no\"", "sample.prompts=[\"a\\n\\t\\\"\\\\\", \"\", \"1\", ü]",
              "data.val=[{path: \"x y: #z\", weight: 0.1}]"}));
  check_round_trip(load_text(
      "model: {from: some/dir}\ndata: {train: a}\ntraining: {max_steps: 2}\n"
      "mixed_precision: fp8\nfp8: {override_linear_precision: [true, false, "
      "true], fast_accumulation: [true, true, false], use_autocast_during_eval: false}\n"));
  check_round_trip(
      load_text("model: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 4, "
                "n_positions: 1024, norm_bias: false}\ndata: {train: a}\n"
                "training: {max_steps: 2}\n"));
  check_round_trip(load_text(kBase, {"model.rope_scaling={rope_type: llama3, factor: 16}"}));
  check_round_trip(load_text(kBase, {"training.max_epochs=2.5"}));
  check_round_trip(load_text(kBase, {"model.rope_scaling={rope_type: linear, factor: 2}"}));
  check_round_trip(load_text(
      kBase, {"model.rope_parameters={rope_type: yarn, factor: 4, mscale: 0.5, truncate: false}",
              "model.model_type=qwen2"}));
  check_round_trip(
      load_text(kBase, {"model.preset=llama-8b", "model.rope_scaling.rope_type=default"}));
}

TEST_CASE("unresolved shows only what differs") {
  CHECK(show_settings(load_text(kBase), false) ==
        "model:\n  preset: toy\n"
        "data:\n  train: [{path: a.txt, format: auto, weight: 1}]\n"
        "training:\n  max_steps: 100\n");
}

TEST_CASE("resolved names every key") {
  const std::string text = show_settings(load_text(kBase), true);
  for (const Field& field : field_table()) {
    const std::string leaf = field.key.substr(field.key.rfind('.') + 1);
    CAPTURE(field.key);
    CHECK((field.input_only || text.find(leaf + ":") != std::string::npos));
  }
}

TEST_CASE("explain prints documentation, type, default and aliases") {
  CHECK(explain_key("optimizer.lr") ==
        "optimizer.lr\n  Peak learning rate. If it is not given with model.from: 1e-5, since that "
        "model is trained already\n  accepts: a number > 0\n  default: 0.0003\n");
  CHECK(explain_key("model.n_embd").find("also: model.n_embd") != std::string::npos);
  CHECK(explain_key("eval").find("eval.interval: Steps between evaluations") != std::string::npos);
  const auto default_of = [](const char* key) { return default_text(*find_field(key)); };
  CHECK(default_of("fp8.amax_history_len") == "the plan's (te-delayed: 1024)");
  CHECK(default_of("fp8.power_2_scale") == "the plan's (te-current: false)");
  CHECK(default_of("precision.dgrad_dy") ==
        "the plan's (te-delayed: \"e5m2 tensor delayed(1024, max)\")");
  CHECK(default_of("precision.master_weight") == "the plan's (te-delayed: none)");
  CHECK(default_of("training.max_time") == "not set");
  CHECK(explain_key("fp8.margin").find("default: the plan's (te-delayed: 0)\n") !=
        std::string::npos);
  CHECK_THROWS_WITH(explain_key("optimizer.lrr"),
                    "optimizer.lrr: unknown key; did you mean \"lr\"?");
}

TEST_CASE("explain lists the plans and the presets, a line each") {
  const std::string plans = explain_key("precision.plan");
  for (const std::string& name : plan_names()) {
    CHECK_THAT(plans, Catch::Contains("\n" + name + " "));
  }
  const std::string models = explain_key("model.preset");
  for (const Preset& preset : presets()) {
    CHECK_THAT(models, Catch::Contains("\n" + preset.name + " "));
  }
}

TEST_CASE("every field is documented and its defaults are accepted") {
  for (const Field& field : field_table()) {
    CAPTURE(field.key);
    CHECK_FALSE(field.doc.empty());
    CHECK(field.doc.back() != '.');
    CHECK_FALSE(field.accepts.empty());
    CHECK(find_field(field.key) == &field);
    for (const std::string& alias : field.aliases) {
      CHECK(find_field(alias) == &field);
    }
  }
}

TEST_CASE("the committed documentation page is the generated one") {
  const auto page =
      std::filesystem::path(FP8TRAIN_SOURCE_DIR) / "docs" / "use" / "configuration.md";
  // Refresh it with: fp8train config docs > docs/use/configuration.md
  CHECK(content_of(page) == configuration_page());
}

}  // namespace
}  // namespace fp8train
