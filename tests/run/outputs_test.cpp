// Where output goes and what it needs: devices, links and full streams as outputs, small stacks,
// files of a run after a power failure.

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

Words train_command(const Words& more = {}) {
  Words words = {"model.preset=toy",
                 "data.train=[{path: text.txt}]",
                 "data.seq_length=32",
                 "training.max_steps=4",
                 "training.micro_batch_size=2",
                 "checkpoint.interval=0",
                 "threads=1",
                 "precision.plan=bf16",
                 "logging.interval=1",
                 "device=cpu",
                 "output_dir=run"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome with_shell(const TextFolder& folder, const std::string& script, const Words& words) {
  Process process(folder.path(), words, {}, {"/bin/sh", "-c", script});
  return process.wait();
}

const std::vector<Words>& commands_with_output() {
  static const std::vector<Words> commands = {
      {"report", "run", "--out"},
      {"quantize", "run/checkpoints/step-000004/model.safetensors", "--overwrite", "--out"},
      {"export", "run", "--to", "gguf", "--overwrite", "--out"},
      {"config", "convert", "a.json", "--overwrite", "--output"}};
  return commands;
}

/// A finished run, and a file of another program.
class Outputs : public TextFolder {
 public:
  Outputs() {
    write_file(*this / "a.json",
               R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {}})");
    expect_code(0, path(), train_command());
  }
  Outcome write_to(Words command, const std::string& out) const {
    command.push_back(out);
    return run_program(path(), command);
  }
};

TEST_CASE("an output that is a link is neither replaced nor followed") {
  const Outputs outputs;
  write_file(outputs / "victim", "old");
  fs::create_symlink("victim", outputs / "link");
  for (const Words& command : commands_with_output()) {
    CAPTURE(command.front());
    const Outcome outcome = outputs.write_to(command, "link");
    CHECK((outcome.code == 2 || outcome.code == 4));
    CHECK_THAT(outcome.err, Contains("link is a link, which a file would replace"));
    CHECK(fs::is_symlink(outputs / "link"));
    CHECK(read_file(outputs / "victim") == "old");
  }
}

TEST_CASE("an output that is a device stays one") {
  const Outputs outputs;
  if (mknod((outputs / "null").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0 ||
      mknod((outputs / "full").c_str(), S_IFCHR | 0600, makedev(1, 7)) != 0) {
    WARN("skipped: only root can make devices");
    return;
  }
  for (const Words& command : commands_with_output()) {
    CAPTURE(command.front());
    // A file whose parts are not written in order has no place there.
    const bool has_positions = command.front() == "quantize";
    const Outcome outcome = outputs.write_to(command, "null");
    INFO(outcome.err);
    CHECK(outcome.code == (has_positions ? 4 : 0));
    CHECK(outputs.write_to(command, "full").code == 4);
    CHECK(fs::is_character_file(outputs / "null"));
    CHECK(fs::is_character_file(outputs / "full"));
  }
}

TEST_CASE("a report may go to standard output") {
  const Outputs outputs;
  for (const char* out : {"-", "/dev/stdout"}) {
    CAPTURE(out);
    Process process(outputs.path(), {"report", "run", "--out", out}, {},
                    {"/bin/sh", "-c", "\"$0\" \"$@\" | cat"});
    const Outcome outcome = process.wait();
    CHECK_THAT(outcome.out, Catch::StartsWith("<!") && !Contains("wrote"));
    CHECK(fs::exists("/dev/stdout"));
  }
}

TEST_CASE("help that cannot be written is an error") {
  const TextFolder folder;
  for (const Words& words : std::vector<Words>{{"--help"}, {"--version"}, {"check", "--help"}}) {
    CAPTURE(words.front());
    const Outcome outcome = with_shell(folder, "exec \"$0\" \"$@\" >/dev/full", words);
    CHECK(outcome.code == 4);
    CHECK_THAT(outcome.err, Contains("standard output cannot be written"));
  }
  const Words check = train_command();
  Words words = {"check"};
  words.insert(words.end(), check.begin(), check.end());
  CHECK(with_shell(folder, "exec \"$0\" \"$@\" >/dev/full", words).code == 4);
}

TEST_CASE("a name that no file system takes is named as such") {
  const TextFolder folder;
  const std::string name(300, 'x');
  for (const Words& words : std::vector<Words>{{"generate", "--checkpoint", name},
                                               {"export", name, "--out", "a"},
                                               {"quantize", name, "--out", "a"}}) {
    const Outcome outcome = run_program(folder.path(), words);
    CHECK(outcome.code == 4);
    CHECK_THAT(outcome.err, Contains("xxx") && Contains(": File name too long") &&
                                !Contains("filesystem error"));
  }
  Words words = train_command();
  words.insert(words.begin(), {"train", "--output-dir", "a\nb"});
  CHECK_THAT(expect_code(2, folder.path(), words).err,
             Contains("output_dir: the value has a control character"));
}

TEST_CASE("a shell's limit of open files is raised as far as it may be") {
  const TextFolder folder;
  CHECK(with_shell(folder, "ulimit -Sn 7; exec \"$0\" \"$@\"", train_command()).code == 0);
}

TEST_CASE("a stack that is too small for the kernels is an error, and no crash") {
  const TextFolder folder;
  const Outcome main = with_shell(folder, "ulimit -s 800; exec \"$0\" \"$@\"", train_command());
  CHECK(main.code == 4);
  CHECK_THAT(main.err, Contains("stack has 800 KiB") && Contains("ulimit -s"));
  CHECK(with_shell(folder, "ulimit -s 1024; exec \"$0\" \"$@\"", train_command()).code == 0);
  const Outcome workers = with_shell(folder, "OMP_STACKSIZE=64k exec \"$0\" \"$@\"",
                                     train_command({"threads=2", "output_dir=two"}));
  CHECK(workers.code == 4);
  CHECK_THAT(workers.err, Contains("stack has 64 KiB") && Contains("OMP_STACKSIZE"));
}

TEST_CASE("a resumed run notes a gap in its metrics and removes lines with NUL bytes") {
  const TextFolder folder;
  expect_code(0, folder.path(), train_command());
  const fs::path metrics = folder / "run/metrics.jsonl";
  std::string kept;
  for (const std::string& line : lines_of(read_file(metrics))) {
    if (nlohmann::json::parse(line).at("step") <= 2) {
      kept += line + "\n";
    }
  }
  write_file(metrics, kept + std::string(100, '\0') + "\n");
  const Outcome outcome = expect_code(0, folder.path(), train_command({"training.max_steps=6"}));
  CHECK_THAT(outcome.err, Contains("metrics.jsonl: removed: 1 line with NUL bytes") &&
                              Contains("metrics.jsonl has no lines of steps 3 to 4, after which "
                                       "the run continues"));
  CHECK(read_file(metrics).find('\0') == std::string::npos);
  // Nothing is noted where there is no gap.
  CHECK_THAT(expect_code(0, folder.path(), train_command({"training.max_steps=7"})).err,
             !Contains("no lines"));
}

}  // namespace
}  // namespace fp8train::test
