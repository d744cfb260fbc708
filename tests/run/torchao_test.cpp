// The program from the command line against PyTorch with torchao's float8 layers: the same folder
// written by transformers, the same batches, the losses of fifty steps
// (tests/golden/make_torchao.py). The two add in another order and have another exp. A sum that
// moves by its last bit now and then takes a number over the border between two FP8 codes, and from
// there on losses part; so do those of the program itself where only the order of sums differs,
// which is the yardstick: both kinds of GEMM units, and the same sequences in another position of
// their batch.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "program.h"

namespace fp8train::test {
namespace {

using Json = nlohmann::json;
using Losses = std::vector<double>;

constexpr size_t kHeader = 1024;  // bytes of a token file before its u16 ids
constexpr double kParted = 1e-6;  // what fp32 does to a loss of the same codes stays below
constexpr size_t kAfter = 10;     // steps

fs::path golden() {
  return FP8TRAIN_GOLDEN_DIR;
}

/// The token file with the windows of every batch in another order.
std::string reordered(const std::string& file, const std::array<size_t, 4>& order, size_t window) {
  std::string result = file;
  const size_t batch = order.size() * window;
  for (size_t begin = kHeader; begin + batch <= file.size(); begin += batch) {
    for (size_t i = 0; i < order.size(); ++i) {
      std::memcpy(&result[begin + i * window], &file[begin + order[i] * window], window);
    }
  }
  return result;
}

/// A way to add: the kind of units that multiply, and the order of sequences in a batch.
struct Sums {
  const char* units;
  std::array<size_t, 4> order;
};

constexpr Sums kSums[] = {{"fp32", {0, 1, 2, 3}}, {"bf16", {0, 1, 2, 3}}, {"fp32", {3, 2, 1, 0}},
                          {"bf16", {3, 2, 1, 0}}, {"fp32", {1, 3, 0, 2}}, {"bf16", {2, 0, 3, 1}}};

Losses losses_of(const std::string& model, const std::string& plan, const Json& expected,
                 const Sums& sums) {
  const TempDir where;
  const size_t window = expected.at("seq_length").get<size_t>() * sizeof(uint16_t);
  write_file(where / "tokens.bin",
             reordered(read_file(golden() / "run" / "torchao.bin"), sums.order, window));
  const auto number = [&](const char* key) { return expected.at(key).dump(); };
  write_file(where / "run.yaml",
             fmt::format("model: {{from: {}}}\n"
                         "data: {{train: [{{path: tokens.bin}}], tokenizer: none, seq_length: {}, "
                         "shuffle: false}}\n"
                         "training: {{max_steps: {}, micro_batch_size: {}}}\n"
                         "optimizer: {{name: adamw, lr: {}, betas: {}, eps: {}, weight_decay: {}, "
                         "grad_clip: {}}}\n"
                         "scheduler: {{type: cosine, warmup_steps: {}, min_lr: {}}}\n"
                         "precision: {{plan: {}}}\n"
                         "logging: {{interval: 1}}\n"
                         "checkpoint: {{save_final: false}}\n"
                         "device: cpu\n"
                         "output_dir: out\n",
                         (golden() / model).string(), number("seq_length"), number("steps"),
                         number("micro_batch_size"), number("lr"), number("betas"), number("eps"),
                         number("weight_decay"), number("grad_clip"), number("warmup_steps"),
                         number("min_lr"), plan));
  const Outcome outcome = run_program(where.path(), {"--config", "run.yaml", "--threads", "1"},
                                      {std::string("FP8TRAIN_CPU_GEMM=") + sums.units});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  Losses losses;
  for (const std::string& line : lines_of(read_file(where / "out" / "metrics.jsonl"))) {
    const Json object = Json::parse(line);
    if (object.contains("loss")) {
      losses.push_back(object.at("loss"));
    }
  }
  return losses;
}

/// How two runs differ, relatively.
struct Difference {
  size_t same = 0;     ///< steps before they part
  double before = 0;   ///< the largest until then
  double after = 0;    ///< the largest in the first steps since
  double largest = 0;  ///< of all
  double mean = 0;
};

Difference difference(const Losses& a, const Losses& b) {
  Difference d;
  REQUIRE(a.size() == b.size());
  bool parted = false;
  for (size_t step = 0; step < a.size(); ++step) {
    const double here = std::abs(a[step] / b[step] - 1);
    parted = parted || here > kParted;
    d.same += parted ? 0 : 1;
    double& part = parted ? d.after : d.before;
    part = !parted || step < d.same + kAfter ? std::max(part, here) : part;
    d.largest = std::max(d.largest, here);
    d.mean += here / static_cast<double>(a.size());
  }
  return d;
}

std::string described(const Difference& d) {
  return fmt::format(
      "same codes for {} steps (to {:.1e}), then {:.1e} in {} steps; largest {:.1e}, "
      "mean {:.1e}",
      d.same, d.before, d.after, kAfter, d.largest, d.mean);
}

TEST_CASE(
    "fifty steps of torchao's plans are as near to torchao as to themselves added otherwise") {
  Difference own;      // the largest
  Difference torchao;  // the largest
  for (const char* model : {"tiny-llama", "tiny-gpt2"}) {
    const Json expected =
        Json::parse(read_file(golden() / "run" / (std::string(model) + "-torchao.json")));
    for (const char* recipe : {"tensorwise", "rowwise"}) {
      CAPTURE(model, recipe);
      const std::string plan = std::string("torchao-") + recipe;
      std::vector<Losses> runs;
      for (const Sums& sums : kSums) {
        runs.push_back(losses_of(model, plan, expected, sums));
      }
      const Losses wanted = expected.at("recipes").at(recipe).at("losses");
      const Difference theirs = difference(runs.front(), wanted);
      WARN(model << " " << recipe << " from torchao: " << described(theirs));
      CHECK(std::abs(runs.front()[0] / wanted[0] - 1) < 1e-4);  // a code or two, elsewhere
      torchao.after = std::max(torchao.after, theirs.after);
      torchao.largest = std::max(torchao.largest, theirs.largest);
      Difference most;
      for (size_t i = 0; i < runs.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          const Difference ours = difference(runs[i], runs[j]);
          most = ours.largest > most.largest ? ours : most;
          own.after = std::max(own.after, ours.after);
          own.largest = std::max(own.largest, ours.largest);
        }
      }
      WARN(model << " " << recipe << " from itself, at most: " << described(most));
    }
  }
  WARN("largest within " << kAfter << " steps: torchao " << torchao.after << ", own " << own.after
                         << "; in all: " << torchao.largest << ", " << own.largest);
  // Where a run parts from another is chance, and so is the size of what follows, of which `own` is
  // the largest of few: a factor of two and a half.
  CHECK(torchao.after <= 2.5 * own.after);
  CHECK(torchao.largest <= 2.5 * own.largest);
  CHECK(torchao.largest < 0.03);
}

}  // namespace
}  // namespace fp8train::test
