// What the command line replaces of a file.

#include <catch2/catch.hpp>

#include "config/load_support.h"
#include "config/show.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::error_of;
using test::kBase;
using test::load_text;

const std::string kFp8 =
    kBase + "mixed_precision: fp8\nfp8: {backend: te, recipe: delayed, margin: 1}\n";

TEST_CASE("a file in FP8 is switched to another precision by one key") {
  const Settings bf16 = load_text(kFp8, {"mixed_precision=bf16"});
  CHECK(resolve_plan(bf16.precision).name == "bf16");
  REQUIRE(bf16.notes.lines.size() == 1);
  CHECK(bf16.notes.lines[0] ==
        "--set mixed_precision=bf16 replaces fp8.backend (run.yaml:5:7), fp8.recipe "
        "(run.yaml:5:20), fp8.margin (run.yaml:5:37)");
  CHECK(resolve_plan(load_text(kFp8, {"precision.plan=bf16"}).precision).name == "bf16");
  CHECK(resolve_plan(load_text(kFp8, {"precision.plan=fp32"}).precision).name == "fp32");
  const Settings other = load_text(kFp8, {"precision.plan=te-delayed"});
  CHECK(resolve_plan(other.precision).name == "te-delayed");
  CHECK(other.precision.margin == 1);
  CHECK_THAT(error_of(kFp8 + "precision: {plan: bf16}\n"), Contains("conflicts"));
}

TEST_CASE("a plan replaces the options of a file that have no meaning for it") {
  for (const char* const key :
       {"precision.plan=te-blockwise", "precision.plan=fp8-lean", "fp8.recipe=current"}) {
    CAPTURE(key);
    const Settings settings = load_text(kFp8 + "precision: {amax_history_len: 3}\n", {key});
    CHECK_FALSE(settings.precision.margin.has_value());
    REQUIRE_FALSE(settings.notes.lines.empty());
    CHECK(settings.notes.lines.back() ==
          std::string("--set ") + key +
              " replaces fp8.margin (run.yaml:5:37), precision.amax_history_len (run.yaml:6:13)");
  }
  const std::string fast = kBase +
                           "mixed_precision: fp8\nfp8: {backend: te, recipe: delayed, "
                           "fast_accumulation: [true, true, true], accumulation: emulated}\n";
  CHECK(load_text(fast, {"precision.plan=te-current"}).precision.accumulation ==
        Accumulation::emulated);
  CHECK_THAT(error_of(kFp8, {"precision.plan=te-current", "fp8.interval=2"}),
             Contains("fp8.interval has no meaning for plan"));
}

TEST_CASE("a fraction of 0 does not replace validation sources") {
  const std::string text =
      "data: {train: t.txt, val: v.txt}\nmodel: {preset: toy}\n"
      "training: {max_steps: 1}\noutput_dir: run\n";
  const auto sources = [&](const char* fraction) {
    return load_text(text, {std::string("data.val_fraction=") + fraction}).data.val.size();
  };
  CHECK(sources("0") == 1);
  CHECK(sources("0.0") == 1);
  CHECK(sources("0.1") == 0);
}

TEST_CASE("the order of a file and a schedule by name replace each other") {
  const std::string named = kBase + "parallelism: {pipeline: 2, schedule: zero_bubble}\n";
  const Settings file = load_text(named, {"parallelism.schedule_file=order.txt"});
  CHECK(file.parallelism.layout.schedule == ScheduleKind::one_forward_one_backward);
  CHECK(file.parallelism.layout.schedule_file == "order.txt");
  CHECK(load_text(show_settings(file, true)) == file);
  const Settings again = load_text(kBase + "parallelism: {pipeline: 2, schedule_file: o.txt}\n",
                                   {"parallelism.schedule=1f1b"});
  CHECK(again.parallelism.layout.schedule_file.empty());
}

TEST_CASE("a plan by name is replaced by what selects one") {
  const std::string planned = kBase + "precision: {plan: deepseek-v3}\n";
  CHECK(resolve_plan(load_text(planned, {"mixed_precision=bf16"}).precision).name == "bf16");
  CHECK(resolve_plan(load_text(planned, {"mixed_precision=fp8", "fp8.recipe=current"}).precision)
            .name == "te-current");
  CHECK(resolve_plan(load_text(planned, {}, "precision.plan=coat").precision).name == "coat");
}

TEST_CASE("a precision that scales nothing replaces the stages of a file") {
  const std::string staged =
      kBase +
      "precision: {plan: te-current, schedule: [{until: 2, plan: te-current}, {plan: bf16}]}\n";
  for (const char* const key : {"mixed_precision=bf16", "precision.plan=bf16"}) {
    CAPTURE(key);
    const Settings bf16 = load_text(staged, {key});
    const PrecisionPlan plan = resolve_plan(bf16.precision);
    CHECK(plan.name == "bf16");
    CHECK(plan.schedule.empty());
    std::string notes;
    for (const std::string& line : bf16.notes.lines) {
      notes += line + "\n";
    }
    CHECK_THAT(notes, Contains("replaces") && Contains("precision.schedule (run.yaml:"));
  }
  CHECK(load_text(staged, {"precision.plan=te-delayed"}).precision.schedule.size() == 2);
  CHECK_THAT(error_of(kBase + "mixed_precision: bf16\nprecision: {schedule: [{until: 2, plan: "
                              "bf16}, {plan: bf16}]}\n"),
             Contains("no stage has scaled"));
}

TEST_CASE("an empty section on the command line removes the file's") {
  const Settings s = load_text(kFp8, {"fp8=", "mixed_precision=bf16"});
  CHECK(s.notes.lines ==
        std::vector<std::string>{"--set fp8= removes fp8.backend, fp8.recipe, fp8.margin"});
  CHECK(load_text(kFp8, {"fp8="}).precision.margin.has_value() == false);
  const Settings spelled =
      load_text(kBase + "mixed_precision: fp8\nprecision: {margin: 1}\n", {"precision="});
  CHECK_FALSE(spelled.precision.margin.has_value());
  CHECK(spelled.notes.lines ==
        std::vector<std::string>{"--set precision= removes precision.margin"});
}

TEST_CASE("alternatives replace each other, and say so") {
  const Settings from = load_text(kBase + "mixed_precision: bf16\n", {"model.from=folder"});
  CHECK(from.model.preset.empty());
  CHECK(from.model.from == "folder");
  CHECK(load_text("model: {hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2, "
                  "max_position_embeddings: 64}\ndata: {train: a}\ntraining: {max_steps: 2}\n",
                  {"model.from=folder", "optimizer.lr=0.001"})
            .notes.lines.size() == 1);
  const Settings other = load_text(
      "model: {from: a, resize_vocabulary: 400}\ndata: {train: a}\ntraining: {max_steps: 2}\n",
      {"model.from=b"});
  CHECK(other.model.resize_vocabulary == 400);  // of any folder
  const Settings tokens = load_text(kBase, {"training.max_tokens=1M"});
  CHECK(tokens.training.max_steps == 0);
  CHECK(tokens.notes.lines ==
        std::vector<std::string>{
            "--set training.max_tokens=1M replaces training.max_steps (run.yaml:3:12)"});
  const Settings epochs = load_text(kBase, {"training.max_tokens=1M", "training.max_epochs=1.5"});
  CHECK(epochs.training.max_epochs == 1.5);
  CHECK(epochs.training.max_tokens == 0);
  CHECK(epochs.training.max_steps == 0);
  const Settings steps =
      load_text("model: {preset: toy}\ndata: {train: a}\ntraining: {max_epochs: 3}\n",
                {"training.max_steps=7"});
  CHECK(steps.training.max_epochs == 0);
  CHECK(steps.notes.lines ==
        std::vector<std::string>{
            "--set training.max_steps=7 replaces training.max_epochs (run.yaml:3:12)"});
  CHECK(load_text(kBase, {"model.from=a", "model.preset=toy"}).model.from.empty());
}

}  // namespace
}  // namespace fp8train
