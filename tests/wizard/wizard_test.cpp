#include "wizard/wizard.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "config/load_support.h"
#include "config/show.h"
#include "precision/plan_table.h"
#include "wizard/typist.h"

namespace fp8train {
namespace {

using Catch::Contains;
using namespace test;

TEST_CASE("Enter everywhere takes what is offered") {
  const Talk done = talk(with_data());
  REQUIRE_FALSE(done.ended);
  const Settings& settings = done.result.settings;
  CHECK(settings.model.preset == "llama-42m");
  CHECK(settings.step.seq_length == 1024);  // the preset's
  CHECK(settings.data.train.front().path == "a.txt");
  CHECK(settings.training.max_steps == 1000);
  CHECK(settings.scheduler.warmup_steps == 50);
  CHECK(settings.checkpoint.interval == 100);
  CHECK(settings.precision.plan == plan_for_method({.mixed_precision = MixedPrecision::fp8}));
  CHECK(done.result.output == "run.yaml");
  for (const std::string& key : done.result.asked) {
    CHECK(done.times(key) == 1);
  }
  CHECK(done.screen.find('\x1b') == std::string::npos);
}

TEST_CASE("the questions are those of the table, and fit into the terminal") {
  CHECK(wizard_fields().size() >= 25);
  for (const Field* field : wizard_fields()) {
    CAPTURE(field->key);
    CHECK_FALSE(field->question->text.empty());
    CHECK_FALSE(std::string(title_of(field->question->topic)).empty());
    for (const Field* other : wizard_fields()) {
      const bool alike = other->question->text.starts_with(field->question->text);
      CHECK((other == field || !alike));  // the typist could not tell them apart
    }
  }
  check_columns(talk(with_data({{"model.preset", "-"},
                                {"model.from", "-"},
                                {"model.hidden_size", "64"},
                                {"model.num_hidden_layers", "2"},
                                {"model.num_attention_heads", "4"},
                                {"precision.plan", "?"},
                                {"data.train", "?"}}))
                    .screen);
  check_columns(plan_table_text(kColumns));
}

TEST_CASE("? explains from the table and asks again") {
  const Talk done = talk(with_data({{"optimizer.lr", "?"}, {"optimizer.lr", "0.002"}}));
  CHECK_THAT(done.screen, Contains(explain_key("optimizer.lr")));
  CHECK(done.times("optimizer.lr") == 2);
  CHECK(done.result.settings.optimizer.lr == 0.002);
}

TEST_CASE("< goes back to the earlier question, with its answer in brackets") {
  const Talk done = talk(with_data({{"job.ranks_per_node", "<"},
                                    {"job.nodes", "3"},
                                    {"job.nodes", "<"},
                                    {"device", "cpu"},
                                    {"device", "<"},
                                    {"device", ""}}));
  // device, nodes 3, ranks <, nodes [3] <, device [cpu] <: nothing is before it, device [cpu]
  // Enter.
  CHECK_THAT(done.screen, Contains("Nodes [3]: ") && Contains("(auto, cpu, cuda) [cpu]: "));
  CHECK(done.result.settings.device == DeviceChoice::cpu);
  CHECK(done.result.settings.job.nodes == 3);
}

TEST_CASE("answers that no longer have a question are forgotten") {
  const Talk done = talk(with_data({{"model.preset", "-"},
                                    {"model.from", "-"},
                                    {"model.model_type", "gpt2"},
                                    {"model.hidden_size", "320"},
                                    {"model.intermediate_size", "<"},
                                    {"model.hidden_size", "<"},
                                    {"model.model_type", "<"},
                                    {"model.from", "<"},
                                    {"model.preset", "toy"}}));
  REQUIRE_FALSE(done.ended);
  CHECK(done.times("model.hidden_size") == 2);
  CHECK_THAT(done.screen, Contains("Hidden size [320]: <"));
  CHECK(done.result.settings.model.config.hidden_size == 64);
  CHECK(std::count(done.result.asked.begin(), done.result.asked.end(), "model.hidden_size") == 0);
}

TEST_CASE("a bad answer gets the text of the loader, and the question stays") {
  const Talk done = talk(with_data({{"optimizer.lr", "3e-4x"},
                                    {"optimizer.lr", "-1"},
                                    {"model.preset", "lama-42m"},
                                    {"precision.plan", "nonesuch"},
                                    {"data.seq_length", "5000"},
                                    {"job.requeue", "maybe"},
                                    {"job.nodes", "-"},
                                    {"training.global_batch_size", "9"},
                                    {"data.train", ""},
                                    {"data.train", "[a, "}}));
  REQUIRE_FALSE(done.ended);
  CHECK_THAT(done.screen, Contains("expected a number > 0, got \"3e-4x\""));
  CHECK_THAT(done.screen, Contains("expected a number > 0, got \"-1\""));
  CHECK_THAT(done.screen, Contains("got \"lama-42m\"; did"));
  CHECK_THAT(done.screen, Contains("no plan 'nonesuch'; the plans are: fp32, bf16"));
  CHECK_THAT(done.screen, Contains("longer than model.max_position_embeddings 1024"));
  CHECK_THAT(done.screen,
             Contains("This answer cannot be left out. Enter a whole number in [1, 65536].\n"));
  CHECK_THAT(done.screen,
             Contains("This answer cannot be left out. Enter a path or a list of sources.\n"));
  CHECK_THAT(done.screen, Contains("9 is not a multiple of training.micro_batch_size 8"));
  CHECK(done.times("optimizer.lr") == 3);
  CHECK_THAT(done.screen, Contains("Enter a path or a list of sources.\n"));
  CHECK(done.times("data.train") == 3);
  CHECK(done.result.settings.optimizer.lr == 0.0003);
  CHECK(done.result.settings.precision.plan ==
        plan_for_method({.mixed_precision = MixedPrecision::fp8}));
}

TEST_CASE("the global batch fits the ranks of the job") {
  const Talk done = talk(with_data(
      {{"job.nodes", "2"}, {"job.ranks_per_node", "2"}, {"training.global_batch_size", "16"}}));
  CHECK_THAT(done.screen,
             Contains("16 is not a multiple of 4 ranks x training.micro_batch_size 8"));
  CHECK(done.result.settings.training.global_batch_size == 32);
  CHECK(done.result.settings.step.gradient_accumulation_steps == 4);  // of one rank
}

TEST_CASE("end of input at any question ends the dialogue") {
  const std::vector<std::string> keys = talk(with_data()).asked;
  for (const std::string& key : keys) {
    CAPTURE(key);
    std::vector<Reply> replies = {{key, kEnd}};
    CHECK(talk(with_data(replies)).ended);
  }
}

/// The number of a key in the review.
std::string number_in_review(const std::string& screen, const std::string& key) {
  std::istringstream lines(screen.substr(screen.rfind("Review")));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, name;
    if (words >> number >> name && name == key) {
      return number;
    }
  }
  return "";
}

TEST_CASE("the review shows all answers and changes one by its number") {
  const std::string screen = talk(with_data()).screen;
  const std::string lr = number_in_review(screen, "optimizer.lr");
  REQUIRE_FALSE(lr.empty());
  const Talk done = talk(with_data({{"review", "0"},
                                    {"review", "x"},
                                    {"review", lr},
                                    {"optimizer.lr", ""},
                                    {"optimizer.lr", "0.5"}}));
  CHECK_THAT(done.screen, Contains("a number from 1 to"));
  CHECK(done.result.settings.optimizer.lr == 0.5);
  CHECK(done.times("review") == 4);
  // `<` leaves the answer as it is.
  const Talk back = talk(with_data({{"review", lr}, {"optimizer.lr", ""}, {"optimizer.lr", "<"}}));
  CHECK(back.result.settings.optimizer.lr == 0.0003);
}

TEST_CASE("a change that contradicts another answer has that one asked again") {
  const std::string screen = talk(with_data()).screen;
  const Talk done = talk(with_data({{"review", number_in_review(screen, "training.max_steps")},
                                    {"training.max_steps", "1000"},
                                    {"training.max_steps", "20"}}));
  REQUIRE_FALSE(done.ended);
  CHECK_THAT(done.screen, Contains("scheduler.warmup_steps: the warm-up of 50 steps does not end"));
  CHECK(done.times("scheduler.warmup_steps") == 2);
  CHECK(done.result.settings.scheduler.warmup_steps == 1);
}

TEST_CASE("a file that is there is replaced only on request") {
  WizardHooks hooks;
  hooks.exists = [&](const std::string& path) { return path == "run.yaml" || path == "b.sbatch"; };
  CHECK(talk(with_data({{"replace", "yes"}}), hooks).result.output == "run.yaml");
  const Talk other = talk(with_data({{"replace", "b.yaml"}, {"replace", "c.yaml"}}), hooks);
  CHECK(other.result.output == "c.yaml");
  CHECK_THAT(other.screen, Contains("b.yaml and b.sbatch would be replaced"));
  const Talk back = talk(with_data({{"replace", ""}, {"replace", "c.yaml"}}), hooks);
  CHECK(back.times("review") == 2);
  CHECK(talk(with_data({{"replace", kEnd}}), hooks).ended);
  CHECK(talk(with_data({{"job.slurm", "false"}, {"replace", "b.yaml"}}), hooks).result.output ==
        "b.yaml");
}

TEST_CASE("memory is reported after what changes it, once") {
  WizardHooks hooks;
  hooks.memory = [](const Settings& settings) {
    return fmt::format("{} of memory", settings.step.micro_batch_size * 3);
  };
  const Talk done = talk(with_data({{"training.micro_batch_size", "4"}}), hooks);
  const size_t first = done.screen.find("  24 of memory\n");
  REQUIRE(first != std::string::npos);
  CHECK(first > done.screen.find("\nPlan"));  // before, the line would be for another plan
  CHECK(done.screen.find("  24 of memory\n", first + 1) == std::string::npos);
  CHECK_THAT(done.screen, Contains("[8]: 4\n  12 of memory\n"));
}

TEST_CASE("what cannot run is not written") {
  WizardHooks hooks;
  hooks.obstacle = [](const Settings& settings) {
    return settings.optimizer.lr < 0.01 ? std::string("too slow") : std::string();
  };
  const std::string lr = number_in_review(talk(with_data()).screen, "optimizer.lr");
  const Talk done = talk(
      with_data({{"review", ""}, {"review", lr}, {"optimizer.lr", ""}, {"optimizer.lr", "0.1"}}),
      hooks);
  CHECK_THAT(done.screen, Contains("This cannot run: too slow"));
  CHECK(done.result.settings.optimizer.lr == 0.1);
  CHECK_THROWS_WITH(take({{"data.train", "a.txt"}}, hooks), "answers.yaml: too slow");
}

TEST_CASE("what does not fit is written only on request, and what fits is offered") {
  WizardHooks hooks;
  hooks.fitting = [](const Settings& settings) {
    return settings.step.micro_batch_size > 2
               ? std::optional(std::vector<Answer>{{"training.micro_batch_size", "2"},
                                                   {"model.recompute", "block"}})
               : std::nullopt;
  };
  const std::vector<Reply> large = with_data({{"training.micro_batch_size", "8"}});
  const Talk changed = talk(large, hooks);
  CHECK_THAT(changed.screen, Contains("It does not fit into memory. Write anyway? [no]: ") &&
                                 Contains("rank [2]: ") &&
                                 Contains("(none, attention, mlp, block) [block]: "));
  CHECK(changed.times("misfit") == 1);
  CHECK(changed.times("training.micro_batch_size") == 2);
  CHECK(changed.times("model.recompute") == 2);
  CHECK(changed.result.settings.step.micro_batch_size == 2);
  CHECK(changed.result.settings.step.decoder.recompute == Recompute::block);
  std::vector<Reply> kept = large;
  kept.push_back({"misfit", "yes"});
  const Talk written = talk(kept, hooks);
  CHECK(written.times("training.micro_batch_size") == 1);
  CHECK(written.result.settings.step.micro_batch_size == 8);
}

TEST_CASE("a remark is printed once, in front of its question") {
  WizardHooks hooks;
  hooks.remark = [](const std::string& key, const Settings&) {
    return key == "precision.plan" ? std::string("In bf16 on h100: a, b\n") : std::string();
  };
  const std::string screen = talk(with_data({{"precision.plan", "?"}}), hooks).screen;
  const size_t at = screen.find("In bf16 on h100: a, b\nPlan [");
  REQUIRE(at != std::string::npos);
  CHECK(screen.find("In bf16", at + 1) == std::string::npos);
}

TEST_CASE("headings are bold where that is asked for, and input is echoed") {
  const Talk bold = talk(with_data(), {}, {.echo = true, .bold = true});
  CHECK_THAT(bold.screen, Contains("\x1b[1mModel\x1b[0m\n"));
  const Talk echo = talk(with_data({{"job.nodes", " 2 "}}), {}, {.echo = true, .bold = false});
  CHECK_THAT(echo.screen, Contains("Nodes [1]: 2\n"));
}

}  // namespace
}  // namespace fp8train
