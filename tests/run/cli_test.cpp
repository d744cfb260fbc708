#include "cli.h"

#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include "base/error.h"
#include "commands.h"
#include "data/tokenizer.h"
#include "support/temp_dir.h"
#include "text_stream.h"

namespace fp8train {
namespace {

using Words = std::vector<std::string>;
const Words kCommands = {"train", "config", "check", "generate"};

/// The options that the words of a command line give.
CommonOptions parsed(Words words) {
  CommonOptions options;
  CLI::App app;
  add_common(Arguments(app), options);
  std::reverse(words.begin(), words.end());
  app.parse(words);
  return options;
}

TEST_CASE("text of tokens comes in whole characters") {
  const auto tokenizer = make_byte_tokenizer();
  Words parts;
  TextStream stream(*tokenizer, [&](std::string_view part) { parts.emplace_back(part); });
  for (const int32_t id : tokenizer->encode("a\u00e9\uFFFD\U0001F600")) stream.add({id});
  CHECK(parts == Words{"a", "\u00e9", "\uFFFD\U0001F600"});  // U+FFFD: it might become another
  stream.add({0xC3});
  CHECK(parts.size() == 3);
  CHECK(stream.finish() == "a\u00e9\uFFFD\U0001F600\xC3");
  CHECK(parts.back() == "\xC3");
}

TEST_CASE("train is the default command") {
  CHECK(with_command({"--config", "run.yaml"}, kCommands) ==
        Words{"train", "--config", "run.yaml"});
  CHECK(with_command({"run.yaml"}, kCommands) == Words{"train", "run.yaml"});
  CHECK(with_command({"optimizer.lr=1"}, kCommands) == Words{"train", "optimizer.lr=1"});
  CHECK(with_command({"dir/run"}, kCommands) == Words{"train", "dir/run"});
  CHECK(with_command({"check", "run.yaml"}, kCommands) == Words{"check", "run.yaml"});
  CHECK(with_command({"--help"}, kCommands) == Words{"--help"});
  CHECK(with_command({"--version", "-v"}, kCommands) == Words{"version", "-v"});
  CHECK(with_command({"-V"}, kCommands) == Words{"version"});
  CHECK(with_command({"help"}, kCommands) == Words{"--help"});
  CHECK(with_command({"help", "check"}, kCommands) == Words{"check", "--help"});
  CHECK(with_command({"help", "--help"}, {"help"}) == Words{"help", "--help"});
  CHECK(with_command({}, kCommands) == Words{"--help"});
}

TEST_CASE("an unknown command is named with the nearest one") {
  CHECK_THROWS_WITH(with_command({"chekc"}, kCommands),
                    "unknown command \"chekc\"; did you mean \"check\"?");
  CHECK_THROWS_WITH(with_command({"zzz"}, kCommands),
                    "unknown command \"zzz\"; fp8train --help lists them");
}

TEST_CASE("--set takes one value each and leaves the positionals alone") {
  const CommonOptions options =
      parsed({"--set", "a=1", "--set", "b=2", "x.yaml", "c=3", "-v", "-v", "--seed", "7"});
  CHECK(options.sets == Words{"a=1", "b=2"});
  CHECK(options.positionals == Words{"x.yaml", "c=3"});
  CHECK(options.verbose == 2);
  CHECK(options.shortcuts.at("training.seed") == "7");
}

TEST_CASE("common options become settings") {
  const test::TempDir directory;
  const std::string path = (directory / "run.yaml").string();
  std::ofstream(path) << "model: {preset: toy}\ndata: {train: a}\ntraining: {max_tokens: 1M}\n";
  const Settings settings = load(parsed(
      {path, "optimizer.lr=0.5", "--set", "optimizer.eps=0.25", "--max-steps", "12", "--device",
       "cpu", "--output-dir", "out", "--threads", "3", "--seed", "9", "--max-time", "1h"}));
  CHECK(settings.optimizer.lr == 0.5);
  CHECK(settings.optimizer.eps == 0.25);
  CHECK(settings.training.max_steps == 12);
  CHECK(settings.training.max_tokens == 0);
  CHECK(settings.training.max_time_seconds == 3600);
  CHECK(settings.step.seed == 9);
  CHECK(settings.device == DeviceChoice::cpu);
  CHECK(settings.threads == 3);
  CHECK(settings.output_dir == "out");
  CHECK_THROWS_WITH(load(parsed({path, "second.yaml"})),
                    Catch::Contains("second.yaml: cannot open the configuration file"));
  CHECK_THROWS_WITH(load(parsed({})), Catch::Contains("no configuration"));
}

TEST_CASE("FP8TRAIN_SET is read") {
  setenv("FP8TRAIN_SET", "training.max_steps=4;device=cpu", 1);
  const CommonOptions options = parsed({"model.preset=toy", "data.train=a", "device=cuda"});
  const Settings settings = load(options);
  unsetenv("FP8TRAIN_SET");
  CHECK(settings.training.max_steps == 4);
  CHECK(settings.device == DeviceChoice::cuda);
}

template <class E>
int code_of(const E& error) {
  return run_guarded([&]() -> int { throw error; });
}

TEST_CASE("errors map to exit codes") {
  CHECK(run_guarded([] { return 0; }) == 0);
  CHECK(run_guarded([] { return 75; }) == 75);
  CHECK(run_guarded([] { return 86; }) == 86);
  CHECK(code_of(InternalError("x")) == 1);
  CHECK(code_of(std::runtime_error("x")) == 1);
  CHECK(run_guarded([]() -> int { throw 3; }) == 1);
  CHECK(code_of(ConfigError("x")) == 2);
  CHECK(code_of(DataError("x")) == 3);
  CHECK(code_of(CheckpointError("x")) == 4);
  CHECK(code_of(DeviceError("x")) == 4);
  CHECK(code_of(CommError("x")) == 4);
  CHECK(code_of(std::bad_alloc()) == 4);
  CHECK(code_of(NumericError("x")) == 5);
  CHECK(code_of(std::filesystem::filesystem_error("status", "x", {})) == 4);
}

__attribute__((noinline)) void throw_bad_alloc() {
  throw std::bad_alloc();
}

/// As a destructor that allocates does.
void run_out_of_memory() noexcept {
  throw_bad_alloc();
}

TEST_CASE("memory that runs out where no exception may pass ends with 4") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    report_memory_at_terminate();
    run_out_of_memory();
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 4);
}

TEST_CASE("the program runs the chosen command") {
  const auto add_answer = [](Arguments command, Action& action) {
    auto value = std::make_shared<int64_t>(0);
    command.option("--value", *value, 0, "A number");
    command.run(action, [value] { return static_cast<int>(*value); });
  };
  const std::vector<Command> commands = {{"train", "help", "fp8train", add_answer},
                                         {"check", "help", "fp8train", add_answer}};
  CHECK(run_program(commands, {"check", "--value", "75"}) == 75);
  CHECK(run_program(commands, {"--value", "5"}) == 5);
  CHECK(run_program(commands, {"check", "--valu", "75"}) == 2);
  CHECK(run_program(commands, {"check", "--value", "x"}) == 2);
  CHECK(run_program(commands, {"check", "--value", "-1"}) == 2);
  CHECK(run_program(commands, {"chekc"}) == 2);
  CHECK(run_program(commands, {"--help"}) == 0);
  CHECK(run_program(all_commands(), {"config", "explain", "optimizer.lr"}) == 0);
  CHECK(run_program(all_commands(), {"config", "explain", "optimizer.lrr"}) == 2);
}

}  // namespace
}  // namespace fp8train
