// fp8train layouts: every way to lay a run over GPUs that are not here.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

Words command(const std::string& name, const Words& more, const std::string& ranks = "16") {
  Words words = {name,
                 "model.preset=gpt2-124m",
                 "data.train=[{path: nothing.bin}]",
                 "data.tokenizer=byte",
                 "data.seq_length=256",
                 "training.max_steps=10",
                 "precision.plan=te-current",
                 "--gpu",
                 "h100",
                 "--world-size",
                 ranks};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

constexpr std::array kRecomputes = {"none", "attention", "mlp", "block"};

/// The lines of the table: ranks that share a layer, stages, ZeRO, recompute, micro-batch,
/// micro-batches, memory and its unit, ...
std::vector<Words> table_of(const std::string& out) {
  std::vector<Words> rows;
  for (const std::string& line : lines_of(out)) {
    std::istringstream in(line);
    const Words row{std::istream_iterator<std::string>(in), {}};
    if (row.size() > 10 && std::ranges::count(kRecomputes, row[3])) {
      rows.push_back(row);
    }
  }
  return rows;
}

/// The keys of the fastest layout, as arguments.
Words fastest_keys(const std::string& out) {
  const size_t at = out.find("fastest: ");
  REQUIRE(at != std::string::npos);
  std::istringstream in(out.substr(at + 9, out.find('\n', at) - at - 9));
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace

TEST_CASE("layouts are ordered by speed, train the same tokens, and are those of estimate") {
  const TempDir folder;
  const std::string out =
      expect_code(0, folder.path(),
                  command("layouts", {"model.num_hidden_layers=4", "training.global_batch_size=96",
                                      "--top", "3000"}))
          .out;
  CHECK_THAT(out, Contains("plan    te-current: 16 of 17 linear layers in FP8") &&
                      Contains(" of 16 ranks on h100, 24.6k tokens per step"));
  const std::vector<Words> rows = table_of(out);
  // Ranks that share layers and stages train on the same sequences. Stage 2 of ZeRO is stage 1 but
  // for steps of one micro-batch, and in one stage of a pipeline gradients can be exchanged one by
  // one. Eight ranks do not divide 12 heads.
  std::ptrdiff_t expected = 0;
  for (const int tensor : {1, 2, 4}) {
    for (int stages = 1; stages <= 4; stages *= 2) {
      std::ptrdiff_t sizes = 0;
      for (int size = 1; size <= 6 * tensor * stages; ++size) {
        sizes += 6 * tensor * stages % size == 0 ? 1 : 0;
      }
      expected += 2 * (stages == 1 ? 5 * sizes - 1 : tensor * stages == 16 ? sizes : 3 * sizes);
    }
  }
  const auto is_1f1b = [](const Words& row) {
    return row[1].find_first_not_of("0123456789") == std::string::npos;
  };
  CHECK(std::ranges::count_if(rows, is_1f1b) == expected);
  CHECK(rows.size() > static_cast<size_t>(expected));  // "4x2": interleaved
  for (const Words& row : rows) {
    CHECK(std::stoll(row[4]) * std::stoll(row[5]) == 6 * std::stoll(row[0]) * std::stoll(row[1]));
  }
  CHECK_THAT(out, Contains("refused: parallelism.tensor is 8, which does not divide"));
  CHECK(std::ranges::is_sorted(rows, {}, [](const Words& row) { return std::stod(row[8]); }));

  const Words keys = fastest_keys(out);
  CHECK(keys[0] == "parallelism.tensor=" + rows[0][0]);
  CHECK(keys[1] == "parallelism.pipeline=" + rows[0][1]);
  CHECK(keys[2] == "parallelism.zero_stage=" + rows[0][2]);
  CHECK(keys[4] == "training.micro_batch_size=" + rows[0][4]);
  CHECK(keys[5] == "training.global_batch_size=96");
  Words same = keys;
  same.emplace_back("model.num_hidden_layers=4");
  const std::string estimated = expect_code(0, folder.path(), command("estimate", same)).out;
  CHECK_THAT(estimated, Contains("fits: " + rows[0][6] + " " + rows[0][7] + " of "));
  CHECK_THAT(estimated, Contains("time    " + rows[0][8]));
}

TEST_CASE("a layout with another schedule than 1F1B is that of estimate") {
  const TempDir folder;
  const Words of_run = {"model.num_hidden_layers=4", "training.global_batch_size=96"};
  Words all = of_run;
  all.insert(all.end(), {"--top", "1000"});
  const std::vector<Words> rows =
      table_of(expect_code(0, folder.path(), command("layouts", all)).out);
  for (const char* schedule : {"x2", "+zb"}) {
    const auto row = std::ranges::find_if(
        rows, [&](const Words& words) { return words[1].find(schedule) != std::string::npos; });
    REQUIRE(row != rows.end());
    const bool in_chunks = std::string(schedule) == "x2";
    Words keys = of_run;
    keys.insert(
        keys.end(),
        {"parallelism.tensor=" + (*row)[0],
         fmt::format("parallelism.pipeline={}", std::stoi((*row)[1])),
         "parallelism.zero_stage=" + (*row)[2], "model.recompute=" + (*row)[3],
         "training.micro_batch_size=" + (*row)[4],
         in_chunks ? "parallelism.schedule=interleaved" : "parallelism.schedule=zero_bubble",
         in_chunks ? "parallelism.virtual_stages=2" : "parallelism.virtual_stages=1"});
    keys.insert(keys.end(), {"--schedule", std::string(schedule) + ".txt"});
    const std::string estimated = expect_code(0, folder.path(), command("estimate", keys)).out;
    CHECK_THAT(estimated, Contains("fits: " + (*row)[6] + " " + (*row)[7] + " of "));
    CHECK(std::stod(estimated.substr(estimated.find("\ntime    ") + 9)) ==
          Approx(std::stod((*row)[8])).epsilon(0.01));
  }
}

TEST_CASE("a layout with a pipeline is that of estimate, and check accepts it") {
  const TempDir folder;
  write_file(folder / "text.txt", std::string(400000, 'a'));
  const Words of_job = {"model.preset=llama-8b",
                        "data.train=text.txt",
                        "data.tokenizer=byte",
                        "data.seq_length=2048",
                        "training.max_steps=10",
                        "precision.plan=bf16",
                        "training.global_batch_size=64",
                        "job.gpu=l4",
                        "device=cuda",
                        "--world-size",
                        "16",
                        "--ranks-per-node",
                        "1"};
  const auto run = [&](const std::string& name, const Words& more) {
    Words words = {name};
    words.insert(words.end(), of_job.begin(), of_job.end());
    words.insert(words.end(), more.begin(), more.end());
    return expect_code(0, folder.path(), words).out;
  };
  const std::string out = run("layouts", {});
  const std::vector<Words> rows = table_of(out);
  REQUIRE(!rows.empty());
  CHECK(std::stoi(rows[0][1]) > 1);  // a slow network
  const std::string estimated = run("estimate", fastest_keys(out));
  CHECK_THAT(estimated, Contains("fits: " + rows[0][6] + " " + rows[0][7] + " of "));
  CHECK_THAT(estimated, Contains("time    " + rows[0][8]));
  CHECK_THAT(run("check", fastest_keys(out)), !Contains("DOES NOT FIT"));
}

TEST_CASE("a file of the fastest layout is a run's, and replaces none") {
  const TempDir folder;
  const Words write =
      command("layouts", {"training.micro_batch_size=2", "training.gradient_accumulation_steps=3",
                          "--write", "fast.yaml"});
  const Outcome written = expect_code(0, folder.path(), write);
  const Words keys = fastest_keys(written.out);
  const Outcome same = expect_code(
      0, folder.path(), {"estimate", "fast.yaml", "--world-size", "16", "--gpu", "h100"});
  const Outcome by_keys = expect_code(0, folder.path(), command("estimate", keys));
  CHECK(same.out == by_keys.out);
  CHECK_THAT(expect_code(2, folder.path(), write).err,
             Contains("--write") && Contains("fast.yaml"));
  Words again = write;
  again.emplace_back("--overwrite");
  expect_code(0, folder.path(), again);
  CHECK_THAT(expect_code(2, folder.path(), command("layouts", {"--write", "new.yaml"}, "12")).err,
             Contains("--write: 12 ranks are not whole nodes of 8: give --ranks-per-node"));
}

TEST_CASE("layouts at the largest number of ranks have a goodput, and say for which interval") {
  const TempDir folder;
  const std::string out =
      expect_code(0, folder.path(),
                  command("layouts",
                          {"model.num_hidden_layers=1", "training.global_batch_size=131072",
                           "training.micro_batch_size=1", "--top", "100"},
                          "131072"))
          .out;
  CHECK_THAT(out, Contains("goodput with checkpoint.interval=auto"));
  for (const Words& row : table_of(out)) {
    const double goodput = std::stod(row[row.size() - 2]);
    CHECK((goodput > 20 && goodput < 60));  // such a job fails every four minutes
  }
}

TEST_CASE("where no layout fits, the smallest is named, and the exit code is 4") {
  const TempDir folder;
  const Words deep = {"model.num_hidden_layers=1000", "training.global_batch_size=16"};
  const std::string offloads = expect_code(0, folder.path(), command("layouts", deep, "1")).out;
  CHECK_THAT(offloads, Contains("0+host") && Contains("offload.optimizer=true"));
  Words wide = deep;
  wide.emplace_back("model.intermediate_size=12288");
  const Outcome outcome = expect_code(4, folder.path(), command("layouts", wide, "1"));
  CHECK_THAT(outcome.out, Contains("do not fit into 78.5 GiB; the smallest of these needs "));
  CHECK_THAT(outcome.err, Contains("no layout fits: take more ranks"));
  CHECK(table_of(outcome.out).empty());
}

TEST_CASE("layouts divide experts among ranks") {
  const TempDir folder;
  const std::string out =
      expect_code(0, folder.path(),
                  command("layouts",
                          {"model.preset=toy-moe", "data.seq_length=64",
                           "training.global_batch_size=8", "precision.plan=bf16"},
                          "8"))
          .out;
  CHECK_THAT(out, Contains("tensor  expert  stages"));
  CHECK_THAT(out, !Contains("refused: parallelism.expert"));
}

TEST_CASE("activations move to the host where all else that fits recomputes blocks") {
  const TempDir folder;
  const std::string out =
      expect_code(
          0, folder.path(),
          command("layouts",
                  {"model.preset=mixtral-8x7b", "model.num_experts=9",  // ranks have all
                   "data.seq_length=8192", "training.micro_batch_size=1", "precision.plan=fp32"},
                  "64"))
          .out;
  CHECK_THAT(out, Contains(" none+host ") && Contains(" block "));
  CHECK_THAT(out,
             Contains("fastest: ") && Contains("offload.activations=true model.recompute=none"));
}

TEST_CASE("layouts takes a GPU by name, and a global batch that ranks can share") {
  const TempDir folder;
  CHECK_THAT(expect_code(2, folder.path(), {"layouts", "model.preset=toy", "device=cpu"}).err,
             Contains("name one with --gpu"));
  CHECK_THAT(
      expect_code(0, folder.path(),
                  command("layouts", {"model.num_hidden_layers=1", "training.micro_batch_size=1",
                                      "training.global_batch_size=17", "--ranks-per-node", "2"}))
          .out,
      Contains("16 sequences instead of training.global_batch_size 17: the nearest "
               "multiple of 16 ranks"));
  CHECK_THAT(expect_code(0, folder.path(),
                         command("layouts",
                                 {"training.micro_batch_size=1", "training.global_batch_size=20"}))
                 .out,
             Contains("not tried: 8, 16 replicas of the model, among which the step's 20 sequences "
                      "cannot be divided"));
  const Words in_order = {"model.num_hidden_layers=2", "training.micro_batch_size=1",
                          "parallelism.pipeline=2", "parallelism.schedule_file=absent.txt"};
  CHECK_THAT(expect_code(0, folder.path(), command("layouts", in_order, "2")).out,
             Contains("parallelism.schedule_file is not read"));
}

}  // namespace fp8train::test
