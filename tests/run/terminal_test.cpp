// What the program shows on a terminal, in a pipe, and for a mistyped option.

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "program.h"
#include "tiny_run.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

TEST_CASE("errors are red on a terminal that has colours, and nowhere else") {
  const TextFolder folder;
  const std::string red = "\x1b[1;31merror:\x1b[0m";
  CHECK_THAT(on_terminal(folder.path(), {"none.yaml"}, 80).text, Contains(red));
  CHECK(on_terminal(folder.path(), {"none.yaml"}, 80, {"NO_COLOR=1"}).text.find('\x1b') ==
        std::string::npos);
  CHECK(on_terminal(folder.path(), {"none.yaml"}, 80, {"TERM=dumb"}).text.find('\x1b') ==
        std::string::npos);
  CHECK_THAT(on_terminal(folder.path(), {"none.yaml"}, 80, {"NO_COLOR="}).text, Contains(red));
  const Outcome piped = run_program(folder.path(), {"none.yaml"}, {"TERM=xterm"});
  CHECK(piped.code == 2);
  CHECK(piped.err.starts_with("error: "));
}

TEST_CASE("warnings are yellow where errors are red") {
  const TextFolder folder;
  const Words words = tiny_run({"precision.plan=te-delayed", "model.hidden_size=24"});
  const std::string shown = on_terminal(folder.path(), words, 120).text;
  CHECK_THAT(shown, Contains("\x1b[33m") && Contains("warning\x1b[0m: no GEMM runs in"));
  CHECK(shown.find("\x1b[32m") == std::string::npos);
  const std::string plain = on_terminal(folder.path(), words, 120, {"NO_COLOR=1"}).text;
  CHECK_THAT(plain, Contains("warning: no GEMM runs in") && !Contains("\x1b[3"));
}

TEST_CASE("lines of a run fit the terminal") {
  const TextFolder folder;
  for (const int columns : {60, 80, 140}) {
    const Screen screen =
        on_terminal(folder.path(), tiny_run({fmt::format("output_dir=run{}", columns)}), columns);
    REQUIRE(screen.code == 0);
    size_t steps = 0;
    for (std::string line : lines_of(screen.text)) {
      line = line.substr(line.rfind("\x1b[K") == std::string::npos ? 0 : line.rfind("\x1b[K") + 3);
      if (line.starts_with("step ") && line.find(" | loss ") != std::string::npos) {
        CHECK(line.size() <= static_cast<size_t>(columns));
        ++steps;
      }
    }
    CHECK(steps == 4);
  }
}

TEST_CASE("memory by category is shown once, and with -v") {
  const TextFolder folder;
  const Outcome first = expect_code(0, folder.path(), tiny_run());
  CHECK_THAT(first.out, Contains("\nmemory\n") && Contains("\n  total "));
  const Outcome again = expect_code(0, folder.path(), tiny_run({"training.max_steps=5"}));
  CHECK_THAT(again.out, Contains("resumed from ") && Contains("\nplan    ") &&
                            Contains("\nmemory  ") && !Contains("\n  total "));
  const Outcome verbose = expect_code(0, folder.path(), tiny_run({"training.max_steps=6", "-v"}));
  CHECK_THAT(verbose.out, Contains("\nmemory\n") && Contains("\n  total "));
}

TEST_CASE("a mistyped option names the one that was meant") {
  const TextFolder folder;
  const auto refusal = [&](const Words& words) { return expect_code(2, folder.path(), words).err; };
  CHECK_THAT(refusal({"--max-stps", "3"}),
             Contains("unknown option --max-stps; did you mean --max-steps?") &&
                 Contains("`fp8train train --help`"));
  CHECK_THAT(refusal({"config", "show", "--resolvd"}),
             Contains("did you mean --resolved?") && Contains("`fp8train config show --help`"));
  CHECK_THAT(refusal({"--optimizer.lr=1"}), Contains("did you mean optimizer.lr=VALUE"));
  CHECK_THAT(refusal({"--max-stps", "3"}), !Contains("?;"));
  CHECK_THAT(refusal({"data"}), Contains("data: a command is missing (inspect, prepare)"));
  CHECK_THAT(refusal({"train", "--set"}), Contains("--set needs a.b=v"));
  CHECK_THAT(refusal({"train", "--seed"}), Contains("--seed needs a value"));
  CHECK_THAT(refusal({"--learning-rate", "1"}), Contains("`optimizer` as lr"));
  CHECK_THAT(refusal({"config", "keys", "--qqqqq"}),
             Contains("unknown option --qqqqq;") && !Contains("did you mean"));
  CHECK_THAT(refusal({"config", "keys", "more"}), Contains("unexpected argument \"more\""));
}

}  // namespace
}  // namespace fp8train::test
