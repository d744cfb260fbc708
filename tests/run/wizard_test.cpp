// fp8train config from a pipe, by an answers file, and stopped on the way.

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <tuple>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

constexpr const char* kAnswers =
    "# a small run\n"
    "device: cpu\n"
    "job: {ranks_per_node: 2, memory_gib: 4}\n"
    "model: {preset: toy}\n"
    "data: {train: [{path: text.txt}]}\n"
    "training: {max_steps: 20, micro_batch_size: 2}\n";

/// The same as kAnswers, as it is typed: the first replies, then Enter everywhere.
std::string typed_answers() {
  return "text.txt\n\ncpu\n\n2\n4\ntoy\n\n\n\n20\n2\n\n?\n" + std::string(40, '\n');
}

class Workshop {
 public:
  Workshop() {
    write_file(folder_ / "text.txt", small_text(8000));
    write_file(folder_ / "answers.yaml", kAnswers);
    fs::create_directory(folder_ / "bin");  // a job script is offered where there is an sbatch
    write_file(folder_ / "bin" / "sbatch", "#!/bin/sh\n");
    fs::permissions(folder_ / "bin" / "sbatch", fs::perms::owner_all);
    setenv("PATH",
           fmt::format("{}:/usr/local/bin:/usr/bin:/bin", (folder_ / "bin").string()).c_str(), 1);
  }

  const fs::path& path() const { return folder_.path(); }
  fs::path operator/(const std::string& name) const { return folder_ / name; }
  bool has(const std::string& name) const { return fs::exists(folder_ / name); }

  /// Runs `fp8train words...` with `text` coming through a pipe.
  Outcome piped(const std::string& text, const Words& words) const {
    write_file(folder_ / "typed", text);
    return Process(path(), words, {}, {"/bin/sh", "-c", "cat typed | \"$0\" \"$@\""}).wait();
  }

 private:
  TempDir folder_;
};

TEST_CASE("answers put no lines of their own into the job script") {
  const Workshop shop;
  std::string answers = kAnswers;
  answers.replace(answers.find("job: {"), 6,
                  "job: {slurm: true, account: \"a\\ntouch PLANTED\\n#\", ");
  write_file(shop / "account.yaml", answers);
  CHECK_THAT(expect_code(2, shop.path(), {"config", "--answers", "account.yaml"}).err,
             Contains("account.yaml:3:29: job.account: "));
  answers = kAnswers;
  answers.replace(answers.find("job: {"), 6, "job: {slurm: true, ");
  write_file(shop / "slurm.yaml", answers);
  CHECK_THAT(
      expect_code(2, shop.path(),
                  {"config", "--answers", "slurm.yaml", "--output", "x\ntouch PLANTED\n#.yaml"})
          .err,
      Contains("no line breaks"));
  CHECK_FALSE(shop.has("x\ntouch PLANTED\n#.yaml"));
}

TEST_CASE("a pipe and an answers file write the same run, which check accepts") {
  const Workshop shop;
  const Outcome typed = shop.piped(typed_answers(), {"config", "--output", "a/run.yaml"});
  CAPTURE(typed.out, typed.err);
  REQUIRE(typed.code == 0);
  CHECK_THAT(typed.out, Contains("memory per rank: ") && Contains(" of 2.0 GiB: fits"));
  CHECK_THAT(typed.out, Contains("fp8train check a/run.yaml\n  sbatch a/run.sbatch\n"));
  CHECK(typed.out.find('\x1b') == std::string::npos);
  CHECK(typed.out.find("\nTraining data") < typed.out.find("\nDevice"));
  CHECK_THAT(typed.out, Contains("Recommended: te-delayed, ") &&
                            Contains("evaluations, 0 for the end only [2]: "));
  expect_code(0, shop.path(), {"config", "--answers", "answers.yaml", "--output", "b/run.yaml"});
  CHECK(same_bytes(shop / "a/run.yaml", shop / "b/run.yaml"));
  const Outcome checked = expect_code(0, shop.path(), {"check", "a/run.yaml"});
  CHECK_THAT(checked.out, Contains("start it with `mpirun -n 2 fp8train a/run.yaml`\n"));
  // What was written is an answers file as well.
  expect_code(0, shop.path(), {"config", "--answers", "a/run.yaml", "--output", "c/run.yaml"});
  CHECK(same_bytes(shop / "a/run.yaml", shop / "c/run.yaml"));
}

TEST_CASE("the estimate of the wizard is the plan of check") {
  const Workshop shop;
  const Outcome one =
      expect_code(0, shop.path(), {"config", "--answers", "answers.yaml", "--output", "run.yaml"});
  const Outcome checked = expect_code(0, shop.path(), {"check", "run.yaml"});
  // check plans for one rank, which has no buffers for an exchange: less, but not by much.
  const auto mib = [](const std::string& text, const std::string& before) {
    return std::strtod(text.c_str() + text.find(before) + before.size(), nullptr);
  };
  const double estimated = mib(one.out, "memory per rank: ");
  const double planned = mib(checked.out, "total");
  CAPTURE(one.out, checked.out);
  CHECK(estimated >= planned);
  CHECK(estimated < 2 * planned);
}

TEST_CASE("memory is that of the named GPU, which need not be here") {
  const Workshop shop;
  for (const auto& [gpu, verdict, code] : {std::tuple("l4", "of 21.5 GiB: DOES NOT FIT", 4),
                                           std::tuple("h200", "of 139 GiB: fits", 0)}) {
    write_file(
        shop / "gpu.yaml",
        fmt::format("device: cuda\njob: {{gpu: {}}}\nmodel: {{preset: llama-1b, recompute: none}}\n"
                    "data: {{train: text.txt}}\ntraining: {{micro_batch_size: 1}}\n",
                    gpu));
    Words command = {"config", "--answers", "gpu.yaml", "--overwrite"};
    const Outcome outcome = expect_code(code, shop.path(), command);
    CHECK_THAT(outcome.out, Contains(verdict));
    if (code != 0) {
      CHECK_THAT(outcome.err, Contains("nothing was written, as the run does not fit into memory"));
      CHECK_FALSE(shop.has("run.yaml"));
      command.emplace_back("--allow-misfit");
      expect_code(0, shop.path(), command);
    }
    CHECK_THAT(read_file(shop / "run.sbatch"), Contains("\n#SBATCH --gpus-per-node=1\n"));
  }
}

TEST_CASE("what does not fit is said with a change that makes it fit") {
  const Workshop shop;
  for (const char* job : {"job: {gpu: h200}\ntraining: {micro_batch_size: 64}\n",
                          "job: {gpu: l4, ranks_per_node: 8}\ntraining: {micro_batch_size: 64}\n"
                          "parallelism: {zero_stage: 0, tensor: 1, pipeline: 1}\n"
                          "precision: {plan: bf16}\n"}) {
    const std::string answers = fmt::format(
        "device: cuda\nmodel: {{preset: llama-1b}}\ndata: {{train: text.txt}}\n{}", job);
    write_file(shop / "large.yaml", answers);
    const Words command = {"config", "--answers", "large.yaml", "--overwrite", "--allow-misfit"};
    const std::string said = expect_code(0, shop.path(), command).out;
    const std::string before = "DOES NOT FIT; it would with ";
    CAPTURE(said);
    REQUIRE_THAT(said, Contains(before));
    const std::string several = "all of: ";
    size_t begin = said.find(before) + before.size();
    begin += said.compare(begin, several.size(), several) == 0 ? several.size() : 0;
    std::string changes = said.substr(begin, said.find('\n', begin) - begin);
    Words with = {"estimate", "run.yaml"};
    for (size_t at = 0; at < changes.size();) {
      const size_t end = std::min(changes.find(", ", at), changes.size());
      std::string change = changes.substr(at, end - at);
      with.push_back(change.replace(change.find(' '), 1, "="));
      at = end + 2;
    }
    CHECK(with.size() > 2);
    const std::string estimated = expect_code(0, shop.path(), with).out;
    CAPTURE(estimated);
    CHECK_THAT(estimated, !Contains("DOES NOT FIT"));
  }
}

TEST_CASE("answers that are left out are those that fit, and others are not written unasked") {
  const Workshop shop;
  write_file(shop / "eight.yaml",
             "device: cuda\njob: {nodes: 4, ranks_per_node: 8, gpu: h100}\n"
             "model: {preset: llama-8b}\ndata: {train: text.txt}\n");
  const Outcome fits = expect_code(0, shop.path(), {"config", "--answers", "eight.yaml"});
  CHECK_THAT(fits.out, Contains(" of 78.5 GiB: fits"));
  // The fastest of the layouts with the micro-batch that is offered.
  const std::string written = read_file(shop / "run.yaml");
  const std::string layouts =
      expect_code(0, shop.path(), {"layouts", "run.yaml", "--top", "1000"}).out;
  const auto has = [&](const std::string& key, const std::string& value) {
    const std::string line = "\n  " + key + ": " + value;
    return written.find(line + " ") != std::string::npos ||
           written.find(line + "\n") != std::string::npos;
  };
  Words first;
  for (const std::string& line : lines_of(layouts)) {
    std::istringstream in(line);
    const Words row{std::istream_iterator<std::string>(in), {}};
    const Words kinds = {"none", "attention", "mlp", "block"};
    const bool is_row = row.size() > 10 && std::ranges::count(kinds, row[3]) > 0;
    if (first.empty() && is_row && row[2].size() == 1 && has("micro_batch_size", row[4])) {
      first = row;
    }
  }
  CAPTURE(written, layouts);
  REQUIRE(!first.empty());
  CHECK(has("tensor", first[0]));
  CHECK(has("pipeline", first[1]));
  CHECK(has("zero_stage", first[2]));
  CHECK(has("recompute", first[3]));
  const std::string device = "text.txt\n\ncuda\n4\n8\nh100\nllama-8b\n\n\n\n20\n8\n";
  const Outcome typed = shop.piped(device + "\n\n\n\nnone\n0\n1\n1\n" + std::string(60, '\n'),
                                   {"config", "--output", "typed.yaml"});
  CAPTURE(typed.out);
  REQUIRE(typed.code == 0);
  CHECK_THAT(typed.out, Contains("In bf16 on h100: ") && Contains("te-mxfp8"));
  CHECK_THAT(typed.out, Contains("Recommended: te-current, ") && Contains("Plan [te-current]: ") &&
                            Contains("Ranks that share each layer ["));
  CHECK_THAT(typed.out, Contains("Write anyway? [no]: "));
  CHECK_THAT(expect_code(0, shop.path(), {"estimate", "typed.yaml"}).out, Contains(" fits: "));
}

TEST_CASE("the wizard says what the job's GPU does with a plan") {
  const Workshop shop;
  const auto said = [&](const char* plan, const char* gpu, int code) {
    write_file(shop / "plan.yaml",
               fmt::format("device: cuda\njob: {{gpu: {}}}\nmodel: {{preset: toy}}\n"
                           "data: {{train: text.txt}}\nprecision: {{plan: {}}}\n",
                           gpu, plan));
    const Outcome outcome =
        expect_code(code, shop.path(), {"config", "--answers", "plan.yaml", "--overwrite"});
    return outcome.out + outcome.err;
  };
  CHECK_THAT(said("te-mxfp8", "h100", 0),
             Contains("plan te-mxfp8: NONE of 9 linear layers multiplies in FP8 on h100"));
  CHECK_THAT(said("te-mxfp8", "b200", 0), !Contains("plan te-mxfp8: "));
  CHECK_THAT(said("te-delayed", "a100", 2), Contains("plan.yaml: on a100: layers.0.attention.qkv"));
  write_file(shop / "old.yaml",
             "device: cuda\njob: {gpu: a100}\nmodel: {preset: toy}\ndata: {train: text.txt}\n");
  expect_code(0, shop.path(), {"config", "--answers", "old.yaml", "--overwrite"});
  CHECK_THAT(read_file(shop / "run.yaml"), Contains("plan: bf16"));
}

TEST_CASE("job scripts are scripts") {
  const Workshop shop;
  for (const char* job : {"{nodes: 1, slurm: true}\ndevice: cpu", "{nodes: 3, gpu: h100}",
                          "{nodes: 2, requeue: true}\ndevice: cpu",
                          "{nodes: 2, gpu: h100, modules: [gcc/12, openmpi], container: it's.sif, "
                          "sbatch_extra: ['--comment=\"$(id) `x`\"']}"}) {
    write_file(shop / "more.yaml", fmt::format("model: {{preset: toy}}\ndata: {{train: text.txt}}\n"
                                               "job: {}\n",
                                               job));
    expect_code(0, shop.path(),
                {"config", "--answers", "more.yaml", "--overwrite", "--output", "it's.yaml"});
    const std::string command = fmt::format("bash -n \"{}\"", (shop / "it's.sbatch").string());
    CHECK(std::system(command.c_str()) == 0);
  }
}

TEST_CASE("a run that is longer than its time limit queues itself again by default") {
  const Workshop shop;
  const bool on_cpu = GENERATE(true, false);
  const auto written = [&](const std::string& job) {
    write_file(shop / "long.yaml",
               fmt::format("{}\ndata: {{train: text.txt}}\nprecision: {{plan: bf16}}\n"
                           "training: {{max_steps: 100000}}\njob: {{nodes: 2, {}}}\n",
                           on_cpu ? "device: cpu\nmodel: {preset: toy}"
                                  : "device: cuda\nmodel: {preset: llama-1b}",
                           job + (on_cpu ? "" : ", gpu: h100")));
    expect_code(0, shop.path(),
                {"config", "--answers", "long.yaml", "--overwrite", "--allow-misfit"});
    return read_file(shop / "run.yaml");
  };
  CHECK_THAT(written("time_limit: 1m"), Contains("requeue: true"));
  CHECK_THAT(written("time_limit: 900h"), Contains("requeue: false"));
  CHECK_THAT(written("time_limit: 1m, requeue: false"), Contains("requeue: false"));
}

TEST_CASE("the wizard offers a rate for a model that is trained already") {
  const Workshop shop;
  const fs::path from = fs::path(FP8TRAIN_GOLDEN_DIR) / "tiny-llama";
  write_file(shop / "more.yaml",
             fmt::format("model: {{from: {}}}\ndata: {{train: text.txt, tokenizer: none}}\n"
                         "training: {{max_steps: 100}}\ndevice: cpu\n",
                         from.string()));
  shop.piped("", {"config", "--answers", "more.yaml", "--overwrite"});
  const std::string run = read_file(shop / "run.yaml");
  CHECK_THAT(run, Contains("lr: 1e-05") && Contains("warmup_steps: 3"));
}

TEST_CASE("nothing is written when the input ends, and nothing is replaced unasked") {
  const Workshop shop;
  const std::string all = typed_answers();
  for (const size_t length : {size_t{0}, size_t{4}, all.find("text.txt") + 3}) {
    const Outcome outcome = shop.piped(all.substr(0, length), {"config"});
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Contains("end of input: nothing was written"));
  }
  CHECK_FALSE(shop.has("run.yaml"));
  write_file(shop / "run.yaml", "mine");
  const Outcome asked = shop.piped(typed_answers(), {"config"});  // Enter goes back, for ever
  CHECK(asked.code == 2);
  CHECK_THAT(asked.out, Contains("run.yaml and run.sbatch would be replaced"));
  CHECK_THAT(expect_code(2, shop.path(), {"config", "--answers", "answers.yaml"}).err,
             Contains("run.yaml already exists; replace it with --overwrite"));
  CHECK(read_file(shop / "run.yaml") == "mine");
  CHECK_FALSE(shop.has("run.sbatch"));
  expect_code(0, shop.path(), {"config", "--answers", "answers.yaml", "--overwrite"});
  CHECK(read_file(shop / "run.yaml") != "mine");
}

TEST_CASE("the wizard asks which GPU to estimate for, and guesses no time of a CPU") {
  const Workshop shop;
  CHECK_THAT(shop.piped(typed_answers(), {"config"}).out,
             Contains(": fits\n") && !Contains(" take about "));
  const Outcome cuda =
      shop.piped("text.txt\n\ncuda\n\n1\n\ntoy\n\n\nbf16\n", {"config", "--output", "b"});
  CHECK_THAT(cuda.out, Contains("name the GPU to") || Contains(" GiB: fits"));
  CHECK_THAT(cuda.out, !Contains("device: auto"));
}

TEST_CASE("the model that is offered without a GPU is one for a processor") {
  const Workshop shop;
  for (const auto& [device, preset] : {std::pair("device: cpu", "nanogpt-laptop"),
                                       std::pair("device: cuda\njob: {gpu: h100}", "llama-42m")}) {
    write_file(shop / "few.yaml", fmt::format("{}\ndata: {{train: text.txt}}\n", device));
    expect_code(0, shop.path(), {"config", "--answers", "few.yaml", "--overwrite"});
    CHECK_THAT(read_file(shop / "run.yaml"), Contains(fmt::format("preset: {} ", preset)));
  }
}

TEST_CASE("a run for this machine is offered no job script, and the end says that there is one") {
  const Workshop shop;
  for (const auto& [job, script] : {std::pair("{nodes: 1}", false), std::pair("{nodes: 2}", true),
                                    std::pair("{slurm: true}", true)}) {
    CAPTURE(job);
    fs::remove(shop / "run.sbatch");
    write_file(shop / "here.yaml", fmt::format("device: cpu\nmodel: {{preset: toy}}\n"
                                               "data: {{train: text.txt}}\njob: {}\n",
                                               job));
    const std::string said =
        expect_code(0, shop.path(), {"config", "--answers", "here.yaml", "--overwrite"}).out;
    CHECK(shop.has("run.sbatch") == script);
    CHECK((said.find("with job.slurm: true a job script") != std::string::npos) == !script);
  }
}

TEST_CASE("a name that cannot be written is asked for again") {
  const Workshop shop;
  const Outcome outcome = shop.piped(typed_answers(), {"config", "--output", "text.txt/run.yaml"});
  CHECK(outcome.code == 2);  // Enter goes back to the review, until the input ends
  CHECK_THAT(outcome.out, Contains("text.txt cannot be written to: Not a directory\nAnother name"));
  expect_code(4, shop.path(),
              {"config", "--answers", "answers.yaml", "--output", "text.txt/run.yaml"});
}

TEST_CASE("Ctrl-C writes nothing") {
  const Workshop shop;
  // The pipe stays open: the program waits for a line.
  const char* script = "mkfifo line && exec 3<>line && exec \"$0\" \"$@\" <line >screen";
  Process process(shop.path(), {"config"}, {}, {"/bin/sh", "-c", script});
  REQUIRE(process.wait_until([&] {
    return shop.has("screen") && fs::file_size(shop / "screen") > 0 && process.is_waiting();
  }));
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.err, Contains("stopped: nothing was written"));
  CHECK_FALSE(shop.has("run.yaml"));
}

TEST_CASE("answers are checked like a configuration") {
  const Workshop shop;
  write_file(shop / "bad.yaml", "model: {preset: toy}\noptimizer: {lrr: 1}\n");
  CHECK_THAT(expect_code(2, shop.path(), {"config", "--answers", "bad.yaml"}).err,
             Contains("bad.yaml:2:13: optimizer.lrr: unknown key; did you mean \"lr\"?"));
  write_file(shop / "few.yaml", "model: {preset: toy}\n");
  CHECK_THAT(expect_code(2, shop.path(), {"config", "--answers", "few.yaml"}).err,
             Contains("few.yaml: data.train is missing"));
  expect_code(2, shop.path(), {"config", "--answers", "none.yaml"});
  CHECK_THAT(expect_code(0, shop.path(), {"config", "list"}).out, Contains("llama-42m"));
}

}  // namespace
}  // namespace fp8train::test
