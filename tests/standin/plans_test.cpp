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
    // Replayed from graphs, and submitted further ahead than the ring of pinned memory is long.
    CHECK(counts.at("graph_launches") >= 18);
    CHECK(counts.at("waits") > 20);
  }
#if defined(FP8TRAIN_MPIRUN)
  /// Two ranks, each with a GPU of its own, whose memory crosses by way of the host's. `saves`: the
  /// weights at the end; kernels have computed none, and codes may say NaN.
  void train_ranks(const std::string& plan, int zero_stage, bool saves) {
    std::filesystem::remove_all(folder_ / "run");
    const Words words = {"train",
                         "model.preset=toy",
                         "data.train=[{path: text.txt}]",
                         "data.val_fraction=0.02",
                         "data.seq_length=32",
                         "training.max_steps=12",
                         "training.micro_batch_size=2",
                         "training.gradient_accumulation_steps=2",
                         "eval.interval=0",
                         "sample.interval=0",
                         "logging.interval=6",
                         "threads=1",
                         "parallelism.bucket_mb=1",
                         fmt::format("parallelism.zero_stage={}", zero_stage),
                         "comm.backend=mpi",
                         fmt::format("checkpoint.save_final={}", saves),
                         "precision.plan=" + plan,
                         "output_dir=run",
                         "--device",
                         "cuda"};
    Words environment = described_gpu();
    environment.insert(environment.end(), {"FP8TRAIN_STANDIN_GPUS=2", "OMP_NUM_THREADS=1",
                                           "OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_pml=ob1",
                                           "OMPI_MCA_btl=self,vader"});
    const Words launcher = {
        FP8TRAIN_MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"};
    const Outcome outcome = Process(folder_.path(), words, environment, launcher).wait();
    INFO(plan << " with zero_stage " << zero_stage << "\n" << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(last_logged_step(folder_ / "run") == 12);
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
    shop.train_ranks("te-delayed", zero_stage, true);
  }
  shop.train_ranks("bf16", 0, true);
  shop.train_ranks("te-current", 3, true);
  shop.train_ranks("msamp-o2", 2, false);
  shop.train_ranks("deepseek-v3", 0, true);
  shop.train_ranks("deepseek-v3", 3, true);
}
#endif

}  // namespace fp8train::test
