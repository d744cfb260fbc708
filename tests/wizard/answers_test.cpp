// Answers from a file, and the configuration that is written from them.

#include <catch2/catch.hpp>
#include <sstream>

#include "config/load_support.h"
#include "config/show.h"
#include "wizard/typist.h"

namespace fp8train {
namespace {

using Catch::Contains;
using namespace test;

TEST_CASE("answers without a dialogue give what typing them gives") {
  const std::vector<Reply> typed = {
      {"job.nodes", "2"},          {"model.preset", "toy"},       {"data.train", "[a.txt, b.txt]"},
      {"training.max_steps", "-"}, {"training.max_tokens", "5M"}, {"optimizer.lr", "1e-3"}};
  std::vector<Answer> answers;
  for (const Reply& reply : typed) {
    if (reply.line != "-") {
      answers.push_back({reply.key, reply.line});
    }
  }
  const WizardResult spoken = talk(typed).result;
  const WizardResult written = take(answers);
  CHECK(spoken.settings == written.settings);
  CHECK(commented_settings(spoken.settings, spoken.asked) ==
        commented_settings(written.settings, written.asked));
}

TEST_CASE("a run may be given in epochs") {
  const Talk done = talk(with_data({{"training.max_steps", "-"}, {"training.max_epochs", "2.5"}}));
  const Settings& settings = done.result.settings;
  CHECK(settings.training.max_epochs == 2.5);
  CHECK(settings.training.max_steps == 0);
  CHECK(settings.training.max_tokens == 0);
  CHECK(settings.checkpoint.interval == kAutomaticInterval);  // the steps are not known
  CHECK(settings.scheduler.warmup_steps == 100);
  CHECK(load_text(commented_settings(settings, done.result.asked)) == settings);
  CHECK(take({{"data.train", "a.txt"}, {"training.max_epochs", "2.5"}}).settings == settings);
}

TEST_CASE("answers leave out what they have an alternative for") {
  const WizardResult sizes = take({{"data.train", "a"},
                                   {"model.hidden_size", "64"},
                                   {"model.num_hidden_layers", "2"},
                                   {"model.num_attention_heads", "4"},
                                   {"data.val", "b"},
                                   {"mixed_precision", "bf16"},
                                   {"training.gradient_accumulation_steps", "3"}});
  CHECK(sizes.settings.model.preset.empty());
  CHECK(sizes.settings.model.config.intermediate_size == 256);
  CHECK(sizes.settings.data.val_fraction == 0);
  CHECK(sizes.settings.precision.plan.empty());
  CHECK(sizes.settings.step.gradient_accumulation_steps == 3);
  const WizardResult folder = take({{"data.train", "a"}, {"model.from", "some/folder"}});
  CHECK(folder.settings.model.preset.empty());
}

TEST_CASE("answers that are missing or do not fit are errors") {
  CHECK_THAT(refusal_of({}), Contains("answers.yaml: data.train is missing"));
  CHECK_THAT(refusal_of({{"data.train", "a"},
                         {"model.preset", "toy"},
                         {"training.max_steps", "3"},
                         {"training.micro_batch_size", "3"}}),
             Contains("taken"));
  CHECK_THAT(
      refusal_of({{"data.train", "a"}, {"job.nodes", "3"}, {"training.global_batch_size", "8"}}),
      Contains("training.global_batch_size"));
}

TEST_CASE("the file for people says what was answered and loads back") {
  for (const char* preset : {"toy", "llama-8b", "gpt2-124m"}) {
    const WizardResult result = take({{"model.preset", preset},
                                      {"data.train", "{path: \"x y: #z\"}"},
                                      {"precision.plan", "bf16"},
                                      {"sample.prompts", "[\"a # b\"]"},
                                      {"job.time_limit", "36h"}});
    const std::string text = commented_settings(result.settings, result.asked);
    CAPTURE(text);
    CHECK(load_text(text) == result.settings);
    check_columns(text);
    CHECK_THAT(text, Contains("# Peak learning rate. ") && Contains("\n\noptimizer:\n"));
    CHECK_THAT(text, Contains("  resume: auto\n"));  // asked, though at its default
    CHECK(text.find("weight_decay") == std::string::npos);
  }
}

}  // namespace
}  // namespace fp8train
