// The whole program on described GPUs before the stand-in runtime: the objects that nvcc built,
// with kernels that compute nothing. A run fails where a launch, a copy, an event or a graph is
// refused, and where something is not freed; its numbers mean nothing.

#include <fmt/format.h>

#include <map>
#include <set>
#include <sstream>

#include "precision/plan.h"
#include "run/program.h"

namespace fp8train::test {
namespace {

/// What the runs on one GPU have reported (report.cpp of the stand-in).
struct Report {
  std::map<std::string, uint64_t> counts;  ///< summed over runs
  std::set<std::string> kernels;
  uint64_t runs = 0;

  /// Adds the report of one run; the counts of that run alone.
  std::map<std::string, uint64_t> add(const std::string& text) {
    std::map<std::string, uint64_t> own;
    for (const std::string& line : lines_of(text)) {
      std::istringstream words(line);
      std::string word;
      words >> word;
      if (word == "kernel") {
        words >> word;
        kernels.insert(word);
        continue;
      }
      while (words >> word) {
        const size_t equals = word.find('=');
        if (word.substr(0, equals) != "gpu") {
          own[word.substr(0, equals)] = std::stoull(word.substr(equals + 1));
        }
      }
    }
    for (const auto& [name, count] : own) {
      counts[name] += count;
    }
    ++runs;
    return own;
  }
};

class Workshop {
 public:
  explicit Workshop(const std::string& gpu) : gpu_(gpu) {
    write_file(folder_ / "text.txt", small_text(20000));
  }

  /// Runs the program; the counts of the run. Fails unless it ends well.
  std::map<std::string, uint64_t> run(Words words) {
    words.insert(words.end(), {"--device", "cuda"});
    std::filesystem::remove(folder_ / "report");
    Words environment = described_gpu();
    environment.push_back("FP8TRAIN_STANDIN_REPORT=report");
    const Outcome outcome = run_program(folder_.path(), words, environment);
    INFO(words[0] << " on " << gpu_ << "\n" << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return report_.add(read_file(folder_ / "report"));
  }

  void train(const std::string& plan, int accumulation) {
    std::filesystem::remove_all(folder_ / "run");
    const auto counts =
        run({"train", "model.preset=toy", "data.train=[{path: text.txt}]", "data.val_fraction=0.02",
             "data.seq_length=32", "training.max_steps=20", "training.micro_batch_size=2",
             fmt::format("training.gradient_accumulation_steps={}", accumulation),
             "eval.interval=0", "sample.interval=0", "logging.interval=50", "threads=1",
             "precision.plan=" + plan, "output_dir=run"});
    // Replayed from graphs, and submitted further ahead than the ring of pinned memory is long,
    // unless the host reads first windows after each step.
    const bool reads = plan_named(plan).fprop.a.is_current_at_first();
    CHECK(counts.at("graph_launches") >= 18);
    CHECK(counts.at("waits") > (reads ? 1 : 20));
  }
#if defined(FP8TRAIN_MPIRUN)
  struct Ranks {
    std::string backend = "mpi";  ///< by way of the host's memory; nccl: from GPU to GPU
    int count = 2;
    int zero_stage = 0;
    bool saves =
        true;  ///< the weights at the end; kernels have computed none, and codes may say NaN
    Words keys = {};
    int steps = 12;
  };
  /// Ranks that have a GPU each.
  void train_ranks(const std::string& plan, const Ranks& ranks) {
    std::filesystem::remove_all(folder_ / "run");
    Words words = {"train",
                   "model.preset=toy",
                   "data.train=[{path: text.txt}]",
                   "data.val_fraction=0.02",
                   "data.seq_length=32",
                   fmt::format("training.max_steps={}", ranks.steps),
                   "training.micro_batch_size=2",
                   "training.gradient_accumulation_steps=2",
                   "eval.interval=0",
                   "sample.interval=0",
                   "logging.interval=6",
                   "threads=1",
                   "parallelism.bucket_mb=1",
                   fmt::format("parallelism.zero_stage={}", ranks.zero_stage),
                   fmt::format("comm.backend={}", ranks.backend),
                   fmt::format("checkpoint.save_final={}", ranks.saves),
                   "precision.plan=" + plan,
                   "output_dir=run",
                   "--device",
                   "cuda"};
    words.insert(words.end(), ranks.keys.begin(), ranks.keys.end());
    Words environment = described_gpu();
    environment.insert(environment.end(), {fmt::format("FP8TRAIN_STANDIN_GPUS={}", ranks.count),
                                           "TMPDIR=" + folder_.path().string(), "OMP_NUM_THREADS=1",
                                           "OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_pml=ob1",
                                           "OMPI_MCA_btl=self,vader"});
    const Words launcher = {FP8TRAIN_MPIRUN,
                            "--allow-run-as-root",
                            "--oversubscribe",
                            "--bind-to",
                            "none",
                            "-n",
                            std::to_string(ranks.count)};
    const Outcome outcome = Process(folder_.path(), words, environment, launcher).wait();
    INFO(ranks.count << " ranks over " << ranks.backend << ", " << plan << " with zero_stage "
                     << ranks.zero_stage << "\n"
                     << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(last_logged_step(folder_ / "run") == ranks.steps);
    CHECK_THAT(outcome.out + outcome.err,
               Catch::Contains(ranks.backend == "nccl" ? "ranks   nccl" : "ranks   staged"));
  }
#endif
  void generate() {
    CHECK(run({"generate", "--checkpoint", "run", "--prompt", "ab", "--max-new-tokens", "4"})
              .at("launches") > 0);
  }
  void bench(const std::string& plan) {
    CHECK(run({"bench", "step", "--preset", "toy", "--micro-batch-size", "2", "--seq-length", "32",
               "--plan", plan, "--seconds", "0.01", "--json"})
              .at("graph_launches") > 0);
  }
  const Report& report() const {
    return report_;
  }

 private:
  /// The environment of one run: when events come late is another matter in each.
  Words described_gpu() {
    return {"FP8TRAIN_STANDIN_GPU=" + gpu_, fmt::format("FP8TRAIN_STANDIN_SEED={}", ++seed_),
            "FP8TRAIN_CUDA_ATTENTION=own", "FP8TRAIN_CUDA_CODE=89-real 90a-real 100-real"};
  }

  TempDir folder_;
  std::string gpu_;
  int seed_ = 0;
  Report report_;
};

void run_every_plan(const std::string& gpu) {
  Workshop shop(gpu);
  const std::vector<std::string> plans = plan_names();
  for (size_t i = 0; i < plans.size(); ++i) {
    CAPTURE(gpu, plans[i]);
    shop.train(plans[i], i % 4 == 3 ? 16 : 1);
    shop.generate();
    shop.bench(plans[i]);
  }
  const Report& report = shop.report();
  const auto sum = [&](const char* name) { return report.counts.at(name); };
  fmt::print(
      "{}: {} plans, {} runs; {} of {} kernels were launched {} times; {} graphs, {} products, {} "
      "copies and fills, {} waits\n",
      gpu, plans.size(), report.runs, report.kernels.size(), sum("registered") / report.runs,
      sum("launches"), sum("graph_launches"), sum("products"), sum("copies"), sum("waits"));
}

}  // namespace

TEST_CASE("every plan trains, generates and is measured on sm_89", "[rtx4090]") {
  run_every_plan("rtx4090");
}
TEST_CASE("every plan trains, generates and is measured on sm_90", "[h200]") {
  run_every_plan("h200");
}
TEST_CASE("every plan trains, generates and is measured on sm_100", "[b200]") {
  run_every_plan("b200");
}

#if defined(FP8TRAIN_MPIRUN)
TEST_CASE("two ranks train on GPUs of their own, alike and in stages of ZeRO", "[ranks]") {
  Workshop shop("h200");
  for (const int zero_stage : {0, 2, 3}) {
    shop.train_ranks("te-delayed", {.zero_stage = zero_stage});
  }
  shop.train_ranks("bf16", {});
  shop.train_ranks("te-current", {.zero_stage = 3});
  shop.train_ranks("msamp-o2", {.zero_stage = 2, .saves = false});
  shop.train_ranks("deepseek-v3", {});
  shop.train_ranks("deepseek-v3", {.zero_stage = 3});
}

TEST_CASE("two and four ranks train over NCCL", "[nccl_ranks]") {
  Workshop shop("h200");
  for (const int zero_stage : {0, 1, 2, 3}) {
    shop.train_ranks("te-delayed", {.backend = "nccl", .zero_stage = zero_stage});
  }
  shop.train_ranks("msamp-o2", {.backend = "nccl", .zero_stage = 2, .saves = false});
  shop.train_ranks("fp8-lm", {.backend = "nccl", .saves = false});
  shop.train_ranks("deepseek-v3", {.backend = "nccl", .count = 4});
  shop.train_ranks("fp8-lean", {.backend = "nccl", .count = 4, .zero_stage = 3, .saves = false});
  const Words groups = {"parallelism.sync_each_batch=true", "parallelism.shard_ranks=2"};
  for (const char* plan : {"te-current", "msamp-o2"}) {
    shop.train_ranks(plan, {"nccl", 4, 3, false, groups});
  }
}

TEST_CASE("ranks that share layers and stages of pipelines train over NCCL", "[nccl_layouts]") {
  Workshop shop("h200");
  const auto train = [&](const char* plan, int count, Words keys) {
    for (std::string& key : keys) {
      key = "parallelism." + key;
    }
    const char* blocks = count == 2 ? "4" : "2";
    keys.insert(keys.end(),
                {"model.num_key_value_heads=4", "model.num_hidden_layers=" + std::string(blocks)});
    shop.train_ranks(plan, {"nccl", count, count == 4 ? 2 : 0, false, keys, 6});
  };
  train("te-delayed", 2, {"tensor=2"});
  train("msamp-o2", 2, {"tensor=2"});
  train("te-current", 4, {"tensor=4"});
  train("te-current", 2, {"pipeline=2", "schedule=zero_bubble"});
  train("deepseek-v3", 2, {"pipeline=2", "schedule=interleaved", "virtual_stages=2"});
  train("te-delayed", 4, {"pipeline=2", "tensor=2"});
}
#endif

}  // namespace fp8train::test
