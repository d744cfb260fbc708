// Where check, and commands that look at the same files, end as the run would.

#include <catch2/catch.hpp>

#include "program.h"
#include "tiny_run.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

/// The words of a command about the run of tiny_run().
Words about_run(const std::string& command, const Words& more = {}) {
  Words words = tiny_run(more);
  words.insert(words.begin(), command);
  return words;
}

/// The variables of mpirun for a rank of two.
Words of_two(int rank) {
  return {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=" + std::to_string(rank)};
}

TEST_CASE("check refuses the folder of a run that goes on, as train does") {
  const TextFolder folder;
  Process run(folder.path(), about_run("train", {"training.max_steps=100000000"}));
  REQUIRE(run.wait_until([&] { return last_logged_step(folder / "run") > 0; }));
  const Outcome check = expect_code(2, folder.path(), about_run("check"));
  CHECK_THAT(check.err, Contains("output_dir: run is in use by another run: process "));
  CHECK(check.out.empty());
  CHECK(check.err == expect_code(2, folder.path(), about_run("train")).err);
  expect_code(0, folder.path(), about_run("check", {"output_dir=other"}));
}

TEST_CASE("check says that a run is over, and nothing on its schedule") {
  const TextFolder folder;
  const Words warms_up = {"scheduler.warmup_steps=4"};
  CHECK_THAT(expect_code(0, folder.path(), about_run("check", warms_up)).err,
             Contains("scheduler.warmup_steps"));
  expect_code(0, folder.path(), about_run("train", warms_up));
  const Outcome over = expect_code(0, folder.path(), about_run("check", warms_up));
  const std::string end = "nothing to do: this run finished at step 4; raise training.max_steps";
  CHECK_THAT(over.out, Contains(end) && !Contains("ok:"));
  CHECK_THAT(over.err, !Contains("warmup_steps"));
  CHECK_THAT(expect_code(0, folder.path(), about_run("train", warms_up)).out, Contains(end));
  CHECK_THAT(expect_code(0, folder.path(), about_run("check", {"training.max_steps=1"})).out,
             Contains("the checkpoint is of step 4, and the configuration asks for 1 step; raise"));
  CHECK_THAT(expect_code(0, folder.path(), about_run("check", {"training.max_steps=5"})).out,
             Contains("step 4 of 5") && Contains("ok:"));
  CHECK_THAT(expect_code(0, folder.path(), about_run("explain", warms_up)).err,
             !Contains("warmup_steps"));
}

TEST_CASE("the folder of a run stands for its configuration, also where it was moved") {
  const TextFolder folder;
  expect_code(0, folder.path(), about_run("train"));
  CHECK_THAT(expect_code(0, folder.path(), {"explain", "run"}).out, Contains("plan fp32"));
  fs::rename(folder / "run", folder / "moved");
  CHECK_THAT(expect_code(0, folder.path(), {"check", "moved", "training.max_steps=6"}).out,
             Contains("from moved/checkpoints/step-000004: step 4 of 6") &&
                 Contains("`fp8train moved training.max_steps=6`"));
  CHECK_THAT(expect_code(0, folder.path(), {"moved"}).out, Contains("Everything is in moved"));
  CHECK(!fs::exists(folder / "run"));
  fs::rename(folder / "moved", folder / "run #2");
  CHECK_THAT(expect_code(0, folder.path(), {"check", "run #2", "training.max_steps=6"}).out,
             Contains("from run #2/checkpoints/step-000004"));
  write_file(folder / "more.yaml", "output_dir: third\n");
  CHECK_THAT(expect_code(0, folder.path(), {"run #2", "more.yaml"}).out,
             Contains("verything is in third"));
  fs::rename(folder / "run #2", folder / "moved");
  CHECK_THAT(expect_code(2, folder.path(), {"check", "moved/samples"}).err,
             Contains("is a folder without the configuration of a run"));
}

TEST_CASE("commands that plan are for the ranks that were started, and the first one prints") {
  const TextFolder folder;
  const Outcome first = run_program(folder.path(), about_run("check"), of_two(0));
  CHECK(first.code == 0);
  CHECK_THAT(first.out, Contains("ranks   2 on 1 node") && Contains("`mpirun -n 2 fp8train "));
  for (const char* command : {"check", "explain", "estimate"}) {
    const Outcome second = run_program(folder.path(), about_run(command), of_two(1));
    CHECK(second.code == 0);
    CHECK(second.out + second.err == "");
  }
  CHECK_THAT(run_program(folder.path(), about_run("check", {"comm.backend=self"}), of_two(0)).out,
             !Contains("ranks "));
  CHECK_THAT(run_program(folder.path(), about_run("check", {"--world-size=4"}), of_two(0)).out,
             Contains("ranks   4 on 1 node"));
  const Words inspect = {"data", "inspect", "text.txt"};
  const Outcome each = run_program(folder.path(), inspect, of_two(0));
  CHECK_THAT(each.err, Contains("2 processes were started, and each does all of the work of "
                                "`fp8train data`"));
  CHECK(run_program(folder.path(), inspect, of_two(1)).out == each.out);
  CHECK(run_program(folder.path(), inspect, of_two(1)).err.empty());
}

TEST_CASE("other data of a run that continues are named") {
  const TextFolder folder(small_text(3000));
  write_file(folder / "other.txt", small_text(5000));
  expect_code(0, folder.path(), about_run("train"));
  const auto refused = [&](const std::string& train) {
    return expect_code(4, folder.path(), about_run("train", {"training.max_steps=5", train})).err;
  };
  CHECK_THAT(refused("data.train=other.txt"),
             Contains("data: data.train has other.txt (") && Contains(") for text.txt ("));
  CHECK_THAT(refused("data.train=[{path: text.txt}, {path: other.txt}]"),
             Contains("data.train had 1 file and has 2; other.txt was added"));
}

TEST_CASE("empty files are not prepared, and missing ones keep no others from being inspected") {
  const TextFolder folder;
  write_file(folder / "empty.txt", "");
  const Words prepare = {"data", "prepare", "empty.txt", "--out", "tokens"};
  CHECK_THAT(expect_code(3, folder.path(), prepare).err,
             Contains("empty.txt: is empty: there is no text to train on"));
  CHECK_THAT(expect_code(3, folder.path(), about_run("check", {"data.val=empty.txt"})).err,
             Contains("data.val: ") && Contains("empty.txt"));
  Words both = prepare;
  both.insert(both.begin() + 2, "text.txt");
  CHECK_THAT(expect_code(0, folder.path(), both).err, Contains("empty.txt: is empty, and left"));
  write_file(folder / "chat.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
             "{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
  const Words dialogues = {"data", "prepare", "empty.txt", "chat.jsonl", "--out", "dialogues"};
  CHECK_THAT(run_program(folder.path(), dialogues).err,
             Contains("empty.txt: is empty, and left") && !Contains("are prepared apart"));
  const Outcome many =
      expect_code(3, folder.path(), {"data", "inspect", "text.txt", "missing", "empty.txt"});
  CHECK(lines_of(many.out).size() == 2);
  CHECK_THAT(many.err, Contains("missing: no such file") && Contains("1 of 3 files"));
}

TEST_CASE("advice on data names options of the command, and keys of a configuration") {
  const TextFolder folder("{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  write_file(folder / "bad.jsonl", "{\"text\": \"one\"}\n{\"other\": 1}\n{\"other\": 2}\n");
  const auto of_command = [&](const std::string& command, const std::string& file) {
    Words words = {"data", command, file};
    if (command == "prepare") words.insert(words.end(), {"--out", "tokens"});
    return expect_code(3, folder.path(), words).err;
  };
  for (const char* command : {"prepare", "inspect"}) {
    CHECK_THAT(of_command(command, "text.txt"),
               Contains("set --format jsonl (--format text learns it"));
    CHECK_THAT(of_command(command, "bad.jsonl"),
               Contains("set --text-key; 1 more record of the file is bad") &&
                   Contains("; --bad-lines skip leaves"));
  }
  CHECK_THAT(expect_code(3, folder.path(), about_run("check")).err,
             Contains("set format: jsonl (format: text learns it"));
  CHECK_THAT(expect_code(3, folder.path(), about_run("check", {"data.train=bad.jsonl"})).err,
             Contains("set data.text_key; 1 more") && Contains("; data.bad_lines: skip leaves"));
}

}  // namespace
}  // namespace fp8train::test
