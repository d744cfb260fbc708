// What `explain`, `check` and `estimate` say of hardware that need not be here: they agree.

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "device/gpu_kinds.h"
#include "precision/plan.h"
#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

/// A folder with text, and runs of one plan on one GPU.
class Job {
 public:
  Job() { write_file(folder_ / "text.txt", small_text(20000)); }

  const fs::path& path() const { return folder_.path(); }

  Words words(const Words& command, const Words& more) const {
    Words all = command;
    for (const char* set : {"model.preset=toy", "data.train=[{path: text.txt}]",
                            "data.seq_length=32", "training.max_steps=10", "output_dir=new",
                            "training.micro_batch_size=2", "device=auto"}) {
      all.emplace_back(set);
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome run(const Words& command, const Words& more) const {
    return run_program(path(), words(command, more));
  }

 private:
  TempDir folder_;
};

bool is_plain(const std::string& operand) {
  return operand == "bf16" || operand == "fp16" || operand == "fp32";
}

/// The part of the FLOPs of GEMMs that is multiplied in 8 bits or fewer, in percent, by the layers
/// that `explain --json` lists.
double percent_in_codes(const Json& explained) {
  double all = 0;
  double in_codes = 0;
  for (const Json& layer : explained.at("linears")) {
    const double weights =
        layer.at("out_features").get<double>() * layer.at("in_features").get<double>();
    for (const char* name : {"fprop", "dgrad", "wgrad"}) {
      const Json& gemm = layer.at(name);
      const bool codes = !is_plain(gemm.at("a")) && !is_plain(gemm.at("b")) &&
                         gemm.at("dequantized").get<std::string>().empty();
      all += weights;
      in_codes += codes ? weights : 0.0;
    }
  }
  return 100 * in_codes / all;
}

double percent_of_estimate(const std::string& text) {
  const size_t at = text.find("in GEMMs (");
  REQUIRE(at != std::string::npos);
  return std::strtod(text.c_str() + at + std::string("in GEMMs (").size(), nullptr);
}

/// The words of the line "plan    NAME: ..." between the name and what refers to `explain`.
std::string plan_of(const std::string& text) {
  const size_t at = text.find("\nplan    ");
  REQUIRE(at != std::string::npos);
  const size_t begin = text.find(": ", at) + 2;
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  return line.substr(0, line.find(" (`fp8train explain`"));
}

void check_agreement(const Job& job, const std::string& plan, const std::string& gpu) {
  CAPTURE(plan, gpu);
  const Words sets = {"precision.plan=" + plan, "job.gpu=" + gpu};
  const Json explained = Json::parse(job.run({"explain", "--json"}, sets).out);
  const Outcome checked = job.run({"check", "--no-scan"}, sets);
  const Outcome estimated = job.run({"estimate"}, sets);
  const std::string products = explained.at("products");
  CAPTURE(products, checked.out, checked.err, estimated.out);
  CHECK_THAT(explained.at("device").get<std::string>(), Contains(gpu));
  if (const std::string refused = explained.at("refused"); !refused.empty()) {
    CHECK_THAT(products, Contains("does not run on " + gpu));
    CHECK(checked.code == 4);
    CHECK(estimated.code == 4);
    const std::string error = estimated.err.substr(estimated.err.find("error: ") + 7);
    CHECK_THAT(refused, Contains(error.substr(0, error.find('\n'))));
    CHECK_THAT(checked.err, Contains(error));
    return;
  }
  CHECK(checked.code == 0);
  CHECK(plan_of(checked.out) == products);
  CHECK(plan_of(estimated.out) == products);
  CHECK(percent_of_estimate(estimated.out) == Approx(percent_in_codes(explained)).margin(0.51));
  CHECK((products.find("NONE of") != std::string::npos) ==
        (percent_in_codes(explained) == 0 && plan != "fp32" && plan != "bf16" && plan != "fp16"));
}

}  // namespace

TEST_CASE("explain, check and estimate agree about every plan on every GPU") {
  const Job job;
  for (const std::string& plan : plan_names()) {
    for (const GpuKind& gpu : gpu_kinds()) {
      check_agreement(job, plan, gpu.name);
    }
  }
}

TEST_CASE("explain is for the GPU of the job, and says which device it is for") {
  const Job job;
  const auto text = [&](const Words& sets) {
    const Outcome outcome = job.run({"explain"}, sets);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  const std::string on_h100 = text({"precision.plan=te-mxfp8", "job.gpu=h100"});
  CHECK_THAT(on_h100, Contains("\n  device              h100 (job.gpu)\n") &&
                          Contains("NONE of 9 linear layers multiplies in FP8 on h100") &&
                          Contains("e4m3 x e4m3 fast dequantized"));
  CHECK_THAT(text({"precision.plan=te-mxfp8", "job.gpu=b200"}),
             Contains("8 of 9 linear layers in FP8") && !Contains("dequantized"));
  CHECK_THAT(text({"precision.plan=te-mxfp8", "job.gpu=h100", "device=cpu"}),
             Contains("8 of 9 linear layers in FP8") && !Contains("h100"));
  CHECK_THAT(text({"precision.plan=te-delayed", "job.gpu=a100"}),
             Contains(" impossible") && Contains("On a100 the run would stop at once: "));
}

TEST_CASE("a GPU that is neither here nor named is asked for") {
  const Job job;
  if (job.run({"check", "--no-scan"}, {"device=cuda"}).code == 0) {
    return;  // this machine has one
  }
  for (const char* command : {"check", "estimate"}) {
    const Outcome outcome = job.run({command}, {"device=cuda"});
    CHECK(outcome.code == 4);
    CHECK_THAT(outcome.err, Contains("to plan for a GPU that is not here, name it in job.gpu"));
  }
  const Outcome explained = job.run({"explain"}, {"device=cuda", "precision.plan=te-mxfp8"});
  CHECK(explained.code == 0);
  CHECK_THAT(explained.out, Contains("\n  device              not known (") &&
                                Contains("set job.gpu") &&
                                Contains("That is so on a GPU that has all of these products."));
}

TEST_CASE("layers that multiply their codes only in part are counted") {
  const Job job;
  const Outcome outcome = job.run({"explain"}, {"precision.plan=te-current", "job.gpu=h100",
                                                "precision.layers={'*.mlp.down': te-mxfp8}"});
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("6 of 9 linear layers in FP8, 2 round to FP8 and multiply in "
                                   "bf16"));
  CHECK_THAT(job.run({"explain"}, {"precision.plan=int8-qat", "device=cpu"}).out,
             Contains("8 of 9 linear layers in INT8 (but 16 of their 24 GEMMs in bf16"));
}

TEST_CASE("explain is for the ranks of the job") {
  const Job job;
  const Words zero = {"parallelism.zero_stage=1", "job.gpu=h100"};
  const std::string no_effect = "has no effect with one rank";
  CHECK_THAT(job.run({"explain"}, zero).err, Contains(no_effect));
  CHECK_THAT(job.run({"explain", "--world-size", "2"}, zero).err, !Contains(no_effect));
  Words four = zero;
  four.insert(four.end(), {"job.nodes=4", "job.ranks_per_node=8"});
  CHECK_THAT(job.run({"explain"}, four).err, !Contains(no_effect));
  const Words staged = {"training.max_steps=0", "training.max_tokens=6400",
                        "precision.schedule=[{until: 0.5, plan: te-delayed}, {plan: te-current}]",
                        "precision.plan=te-delayed"};
  const auto steps_of = [&](const Words& command) {
    Words words = job.words(command, staged);
    std::erase(words, "training.max_steps=10");
    std::erase(words, "training.max_steps=0");
    return Json::parse(expect_code(0, job.path(), words).out).at("stages").back().at("end");
  };
  CHECK(steps_of({"explain", "--json"}) == 100);
  CHECK(steps_of({"explain", "--json", "--world-size", "2"}) == 50);
}

TEST_CASE("check ends with the code of the run where it is known which machine that is for") {
  const Job job;
  const std::string large = "training.micro_batch_size=1000000";
  const Outcome named = job.run({"check", "--no-scan"}, {large, "job.gpu=l4"});
  CHECK(named.code == 4);
  CHECK_THAT(named.out, Contains("on l4 the run would stop at once, with exit code 4"));
  const Outcome here = job.run({"check", "--no-scan"}, {large, "device=cpu"});
  CHECK(here.code == 4);
  CHECK_THAT(here.out, Contains("on this CPU the run would stop at once, with exit code 4"));
  CHECK(job.run({"check", "--no-scan", "-q"}, {large, "device=cpu"}).code == 4);
  const Outcome others = job.run({"check", "--no-scan"}, {large, "device=cpu", "job.nodes=4"});
  CHECK(others.code == 0);
  CHECK_THAT(others.out, Contains("set job.gpu, or on CPUs device: cpu and job.memory_gib"));
  CHECK(job.run({"check", "--no-scan"}, {large, "device=cpu", "job.nodes=4", "job.memory_gib=64"})
            .code == 4);
}

}  // namespace fp8train::test
