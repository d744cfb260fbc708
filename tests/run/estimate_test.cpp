// fp8train estimate: what a run needs on ranks that are not here.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

Words estimate(const Words& more) {
  Words words = {"estimate",
                 "model.preset=gpt2-124m",
                 "data.train=[{path: nothing.bin}]",
                 "data.tokenizer=byte",
                 "data.seq_length=256",
                 "training.max_steps=10",
                 "training.micro_batch_size=4",
                 "precision.plan=te-current"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The number after `label` in GiB, MiB or KiB; -1: there is none.
double bytes_of(const std::string& text, const std::string& label) {
  for (const std::string& line : lines_of(text)) {
    const size_t at = line.find("  " + label + " ");
    if (at == std::string::npos) {
      continue;
    }
    const double number = std::stod(line.substr(at + label.size() + 3));
    const double unit = line.find("GiB") != std::string::npos   ? 1024.0 * 1024 * 1024
                        : line.find("MiB") != std::string::npos ? 1024.0 * 1024
                                                                : 1024.0;
    return number * unit;
  }
  return -1;
}

}  // namespace

TEST_CASE("memory, wire and time of a rank among many, without data and without a GPU") {
  const TempDir folder;
  const Outcome outcome =
      expect_code(0, folder.path(),
                  estimate({"--world-size", "64", "--gpu", "h100", "parallelism.zero_stage=3"}));
  CHECK_THAT(outcome.out,
             Contains("ranks   64 on 8 nodes, ZeRO 3, buckets of 25 MiB; 65536 tokens per step"));
  CHECK_THAT(outcome.out, Contains("fits: ") && Contains("of it NCCL's buffers"));
  CHECK_THAT(outcome.out, Contains(" within the node, "));
  CHECK_THAT(outcome.out, Contains("s per step, "));
  CHECK_THAT(outcome.out, Contains(" s, attention ") && Contains(" s, other operations ") &&
                              Contains(" s, wire ") && Contains(" overlapped)"));
  CHECK_THAT(
      outcome.out,
      Contains("largest training.micro_batch_size that fits, with 1 micro-batch per step: "));
}

TEST_CASE("the time of an estimate is that of bench step's model") {
  const TempDir folder;
  for (const char* plan : {"bf16", "te-delayed", "te-blockwise", "deepseek-v3"}) {
    CAPTURE(plan);
    const std::string out =
        expect_code(0, folder.path(),
                    {"estimate", "model.preset=gpt2-124m", "--gpu", "h100", "data.seq_length=1024",
                     "training.micro_batch_size=4", "training.gradient_accumulation_steps=5",
                     std::string("precision.plan=") + plan})
            .out;
    const size_t at = out.find("\ntime    ");
    REQUIRE(at != std::string::npos);
    const nlohmann::json report = nlohmann::json::parse(
        expect_code(
            0, folder.path(),
            {"bench", "step", "--preset", "gpt2-124m", "--device", "meta:h100", "--seq-length",
             "1024", "--micro-batch-size", "4", "--accumulation", "5", "--plan", plan, "--json"})
            .out);
    CHECK(std::stod(out.substr(at + 9)) ==
          Approx(report.at("seconds_per_step").get<double>()).epsilon(0.01));
  }
}

TEST_CASE("the bytes of frozen weights on a GPU do not depend on this machine") {
  const TempDir folder;
  const auto adapter_line = [&](const char* packs) {
    const Outcome outcome =
        run_program(folder.path(), estimate({"--gpu", "h100", "model.lora.rank=4"}),
                    {std::string("FP8TRAIN_CPU_PACK=") + packs});
    CHECK(outcome.code == 0);
    const size_t at = outcome.out.find("\nadapter ");
    REQUIRE(at != std::string::npos);
    return outcome.out.substr(at, outcome.out.find("memory ", at) - at);
  };
  CHECK(adapter_line("1") == adapter_line("0"));
}

TEST_CASE("on CPUs an estimate plans with the threads of a rank") {
  const TempDir folder;
  const auto workspace = [&](const Words& more, const Words& environment) {
    // Few rows: products of many pack their second operand once for all threads.
    Words words = estimate({"device=cpu", "precision.plan=deepseek-v3", "data.seq_length=64",
                            "training.micro_batch_size=1"});
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_program(folder.path(), words, environment);
    CHECK(outcome.code == 0);
    return bytes_of(outcome.out, "workspace");
  };
  const double one = workspace({"threads=1"}, {"OMP_NUM_THREADS=64"});
  const double many = workspace({"threads=64"}, {"OMP_NUM_THREADS=1"});
  CHECK(one > 0);
  CHECK(many > one);
  CHECK(workspace({}, {"OMP_NUM_THREADS=64"}) == many);
  // The ranks of a node share its cores.
  CHECK(workspace({"--world-size", "1024", "--ranks-per-node", "1024"}, {}) == one);
}

TEST_CASE("an estimate is for the processes of another program's file, unless ranks are given") {
  const TempDir folder;
  write_file(folder / "launch.yaml", "distributed_type: MULTI_GPU\nnum_processes: 16\n");
  const auto ranks_of = [&](const Words& more) {
    Words words = estimate(more);
    words.insert(words.begin() + 1, "launch.yaml");
    return expect_code(0, folder.path(), words);
  };
  const Outcome planned = ranks_of({"--gpu", "h100"});
  CHECK_THAT(planned.out, Contains("ranks   16 on 2 nodes, DDP"));
  CHECK_THAT(planned.err, !Contains("the configuration is for 16 processes"));
  CHECK_THAT(ranks_of({"--gpu", "h100", "--world-size", "4"}).out,
             Contains("ranks   4 on 1 node, DDP"));
}

TEST_CASE("a model is enough for an estimate, and what does not fit has a remedy") {
  const TempDir folder;
  const Outcome outcome =
      expect_code(0, folder.path(),
                  {"estimate", "model.preset=llama-8b", "--world-size", "8", "--gpu", "h100"});
  CHECK_THAT(outcome.out, Contains("ranks   8 on 1 node"));
  CHECK_THAT(outcome.out, Contains("DOES NOT FIT: needs ") && Contains("; it would with "));
  CHECK_THAT(expect_code(2, folder.path(), {"estimate", "training.max_steps=1"}).err,
             Contains("model.preset: missing"));
}

TEST_CASE("a gradient wire that does not cross between ranks is refused in all stages of ZeRO") {
  const TempDir folder;
  for (const char* stage : {"0", "1", "3"}) {
    const Words words = estimate({"--world-size", "2", "precision.gradient_wire=fp16",
                                  std::string("parallelism.zero_stage=") + stage});
    CHECK_THAT(expect_code(2, folder.path(), words).err,
               Contains("precision.gradient_wire: ") && Contains("does not cross between ranks"));
  }
}

TEST_CASE("each stage needs less than the one before") {
  const TempDir folder;
  const auto total = [&](int stage, const char* label) {
    const Outcome outcome =
        expect_code(0, folder.path(),
                    estimate({"--world-size", "16", "--gpu", "l40s",
                              "parallelism.zero_stage=" + std::to_string(stage)}));
    return bytes_of(outcome.out, label);
  };
  CHECK(total(1, "optimizer state") == Approx(total(0, "optimizer state") / 16).epsilon(0.02));
  CHECK(total(1, "weights") < 0.5 * total(0, "weights"));
  CHECK(total(2, "gradients") < 0.7 * total(1, "gradients"));
  CHECK(total(3, "GEMM copies of weights") < 0.5 * total(2, "GEMM copies of weights"));
}

TEST_CASE("a global batch that the ranks cannot share is planned as the nearest that they can") {
  const TempDir folder;
  const auto tokens = [&](const char* ranks, const char* sequences) {
    return expect_code(0, folder.path(),
                       estimate({"--world-size", ranks, "--gpu", "h100",
                                 fmt::format("training.global_batch_size={}", sequences)}))
        .out;
  };
  CHECK_THAT(tokens("1024", "8"),
             Contains("batch   4096 sequences instead of training.global_batch_size 8: the nearest "
                      "multiple of 1024 ranks x training.micro_batch_size 4\n") &&
                 Contains(fmt::format("; {} tokens per step\n", 4096 * 256)));
  CHECK_THAT(tokens("3", "40"), Contains("batch   36 sequences instead of "));
  CHECK_THAT(tokens("2", "40"), !Contains("sequences instead of"));
}

TEST_CASE("the time of a step has its MFU") {
  const TempDir folder;
  const std::string out =
      expect_code(0, folder.path(), estimate({"--gpu", "h100", "precision.plan=bf16"})).out;
  const size_t at = out.find(" tokens/s, MFU ");
  REQUIRE(at != std::string::npos);
  const double mfu = std::stod(out.substr(at + 15));
  CHECK(mfu > 5);   // a micro-batch of a small model
  CHECK(mfu < 68);  // the share that the products are assumed to reach
  CHECK_THAT(out.substr(at), Contains(" %: GEMMs "));
}

TEST_CASE("a pipeline is estimated by its stage with the most memory") {
  const TempDir folder;
  const Words pipeline = {"--world-size", "8", "parallelism.pipeline=4",
                          "training.gradient_accumulation_steps=16"};
  const std::string out = expect_code(0, folder.path(), estimate(pipeline)).out;
  CHECK_THAT(out, Contains("ranks   8 on 1 node, DDP, 4 pipeline stages") &&
                      Contains("; 32768 tokens per step"));  // of 2 replicas
  CHECK_THAT(out, Contains("stages  4, of 1 to 4 blocks, in the order 1f1b, up to 4 micro-batches "
                           "in the first one at a time; idle for ") &&
                      Contains("are those of stage 0, which needs the most memory"));
  const Words two = {"estimate", "model.preset=toy", "--world-size", "2", "parallelism.pipeline=2"};
  CHECK_THAT(expect_code(0, folder.path(), two).out,
             Contains("stages  2, of 1 block, in the order"));
  const std::string whole =
      expect_code(0, folder.path(),
                  estimate({"--world-size", "8", "training.gradient_accumulation_steps=16"}))
          .out;
  CHECK(bytes_of(out, "gradients") < bytes_of(whole, "gradients"));
  CHECK_THAT(
      expect_code(2, folder.path(), estimate({"--world-size", "8", "parallelism.pipeline=3"})).err,
      Contains("parallelism.pipeline is 3, which does not divide 8 ranks; the nearest size that "
               "does is 2"));
  CHECK_THAT(
      expect_code(2, folder.path(), estimate({"--world-size", "16", "parallelism.pipeline=16"}))
          .err,
      Contains("parallelism.pipeline is 16, and the model has 12 blocks"));
}

TEST_CASE("the order of stages is written, and is the same when it is read") {
  const TempDir folder;
  const auto estimated = [&](const Words& more) {
    Words words = estimate({"--world-size", "4", "parallelism.pipeline=4", "--gpu", "h100",
                            "training.gradient_accumulation_steps=9"});
    words.insert(words.end(), more.begin(), more.end());
    return expect_code(0, folder.path(), words).out;
  };
  const std::string made =
      estimated({"parallelism.schedule=zero_bubble", "--schedule", "order.txt"});
  CHECK_THAT(made, Contains("wrote order.txt; parallelism.schedule_file=order.txt runs it"));
  const std::string text = read_file(folder / "order.txt");
  CHECK(lines_of(text).size() == 4);
  CHECK_THAT(text, Contains("stage 3: F0 B0") && Contains(" W8"));
  const std::string read =
      estimated({"parallelism.schedule_file=order.txt", "--schedule", "again.txt"});
  CHECK(read_file(folder / "again.txt") == text);
  CHECK_THAT(read, Contains("in the order of order.txt, up to 4 micro-batches"));
  for (const char* line : {"\ntime    ", "\n  saved activations", "\n  total "}) {
    CAPTURE(line);
    const size_t at = made.find(line);
    REQUIRE(at != std::string::npos);
    CHECK_THAT(read, Contains(made.substr(at, made.find('\n', at + 1) - at)));
  }
}

TEST_CASE("the time of a pipeline has the waits of its stages") {
  const TempDir folder;
  const auto seconds = [&](const char* micro_batches) {
    const std::string out =
        expect_code(
            0, folder.path(),
            estimate({"--world-size", "4", "--gpu", "h100", "parallelism.pipeline=4",
                      std::string("training.gradient_accumulation_steps=") + micro_batches}))
            .out;
    CHECK_THAT(out, Contains(", which works longest; stages are idle for "));
    return std::stod(out.substr(out.find("\ntime    ") + 9));
  };
  // Each idles as long as it takes for the first micro-batch to pass: sixteen cost less than four
  // times four.
  const double four = seconds("4");
  const double sixteen = seconds("16");
  CHECK(sixteen > 2 * four);
  CHECK(sixteen < 3.5 * four);
}

TEST_CASE("what cannot be estimated is an error that says why") {
  const TempDir folder;
  CHECK_THAT(expect_code(2, folder.path(), estimate({"--world-size", "5000000000"})).err,
             Contains("--world-size: 5000000000 ranks are more than 131072"));
  CHECK_THAT(
      expect_code(2, folder.path(), estimate({"job.nodes=65536", "job.ranks_per_node=1024"})).err,
      Contains("job.nodes and job.ranks_per_node: 67108864 ranks are more than 131072"));
  CHECK_THAT(expect_code(2, folder.path(), estimate({"--gpu", "h1000"})).err,
             Contains("'h1000' is not one of a100, l4, "));
  CHECK_THAT(expect_code(4, folder.path(), estimate({"--gpu", "a100"})).err,
             Contains("this GPU has no FP8 products with one scale for each tensor; use another "
                      "plan, or where the GPU has FP8 units another release of cuBLAS"));
}

}  // namespace fp8train::test
