// What benchmarks say of rates and times must fit together. Small sizes: the rates
// themselves mean nothing.

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "program.h"
#include "support/temp_dir.h"
#include "timeline_checks.h"

namespace fp8train::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

Json run_bench(Words words) {
  const TempDir folder;
  words.insert(words.begin(), "bench");
  words.insert(words.end(), {"--seconds", "0.01", "--device", "cpu", "--json"});
  return Json::parse(expect_code(0, folder.path(), words).out);
}

double number(const Json& json, const char* key) {
  return json.at(key).get<double>();
}

TEST_CASE("bench cast sets each cast against a copy") {
  const Json report = run_bench({"cast", "--rows", "32", "--columns", "256"});
  CHECK(report.at("rows") == 32);
  CHECK(report.at("columns") == 256);
  const double copy = number(report, "copy_gbytes_per_second");
  CHECK(copy > 0);
  std::set<std::string> kinds;
  for (const Json& cast : report.at("results")) {
    kinds.insert(cast.at("scales").get<std::string>());
    const double bytes = number(cast, "gbytes_per_second");
    CHECK(number(cast, "share_of_copy") == Approx(bytes / copy));
    // x is read once, each orientation has codes of a byte, and scales add an eighth at most.
    const double least = (cast.at("from") == "fp32" ? 4 : 2) + number(cast, "orientations");
    const double per_element = bytes / number(cast, "gelements_per_second");
    CHECK(per_element >= least * 0.999);
    CHECK(per_element <= least + 0.125 * number(cast, "orientations"));
  }
  CHECK(kinds == std::set<std::string>{"delayed", "current", "row", "1x128", "128x128", "1x32"});
  CHECK(report.at("results").size() == 28);  // 2 types, 1 or 2 orientations, 7 casts
}

TEST_CASE("bench step models a GPU that is not here, operation by operation") {
  const TempDir folder;
  const Words words = {"bench",
                       "step",
                       "--preset",
                       "llama-1b",
                       "--layers",
                       "2",
                       "--plan",
                       "te-delayed",
                       "--device",
                       "meta:h200",
                       "--seq-length",
                       "8192",
                       "--micro-batch-size",
                       "1",
                       "--accumulation",
                       "2"};
  Words as_json = words;
  as_json.emplace_back("--json");
  const Json report = Json::parse(expect_code(0, folder.path(), as_json).out);
  double seconds = 0;
  double bytes = 0;
  int64_t launches = 0;
  for (const Json& row : report.at("operations")) {
    seconds += number(row, "seconds");
    bytes += number(row, "bytes");
    launches += row.at("launches").get<int64_t>();
  }
  CHECK(number(report, "seconds_per_step") == Approx(seconds));
  CHECK(number(report.at("step"), "bytes") == Approx(bytes));
  CHECK(report.at("step").at("launches") == launches);
  CHECK(number(report, "tokens_per_second") == Approx(2 * 8192 / seconds));
  CHECK(number(report, "of_bf16") ==
        Approx(number(report.at("bf16"), "seconds_per_step") / seconds));
  CHECK(number(report, "memory_bytes") > 12 * 4e8);  // 16 bytes of a parameter, and more
  CHECK_THAT(report.at("note").get<std::string>(), Contains("A model, not a measurement"));
  const std::string text = expect_code(0, folder.path(), words).out;
  CHECK_THAT(text, Contains("A model, not a measurement"));
  CHECK_THAT(text, Contains("swiglu_backward"));
  const std::string small =
      expect_code(0, folder.path(), {"bench", "step", "--device", "meta:h200", "--preset", "toy"})
          .out;
  CHECK_THAT(small, Contains("\nmemory ") && Contains(" MiB; in bf16 ") && !Contains(" 0.0 GiB"));
}

TEST_CASE("bench step takes changes to the plan") {
  const TempDir folder;
  const auto seconds = [&](const Words& changes) {
    Words words = {"bench",
                   "step",
                   "--preset",
                   "llama-1b",
                   "--layers",
                   "2",
                   "--plan",
                   "te-delayed",
                   "--device",
                   "meta:h200",
                   "--seq-length",
                   "8192",
                   "--micro-batch-size",
                   "1",
                   "--json"};
    words.insert(words.end(), changes.begin(), changes.end());
    return number(Json::parse(expect_code(0, folder.path(), words).out), "seconds_per_step");
  };
  const double as_planned = seconds({});
  CHECK(seconds({"--set", "fp8.fast_accumulation=[true, false, false]"}) == as_planned);
  const double dgrad = seconds({"--set", "fp8.fast_accumulation=[true, true, false]"});
  CHECK(dgrad < as_planned);
  CHECK(seconds({"--set", "fp8.fast_accumulation=[true, true, true]"}) < dgrad);
  CHECK(seconds({"--set", "fp8.fast_accumulation=[false, false, false]"}) > as_planned);
  const auto refused = [&](const char* set) {
    return expect_code(
               2, folder.path(),
               {"bench", "step", "--plan", "te-delayed", "--device", "meta:h200", "--set", set})
        .err;
  };
  CHECK_THAT(refused("optimizer.lr=1"), Contains("expected precision.KEY=VALUE or fp8.KEY=VALUE"));
  CHECK_THAT(refused("fp8.fast_accumulation=[true]"), Contains("fp8.fast_accumulation"));
  const Words unknown = {"bench", "step", "--plan", "nonesuch", "--device", "meta:h200"};
  CHECK_THAT(expect_code(2, folder.path(), unknown).err,
             Contains("error: --plan: no plan 'nonesuch'"));
  const auto error_of = [&](const Words& options) {
    Words words = {"bench", "step", "--device", "meta:h200"};
    words.insert(words.end(), options.begin(), options.end());
    return expect_code(2, folder.path(), words).err;
  };
  CHECK_THAT(error_of({"--plan", "custom"}), Contains("error: --plan: plan 'custom' is what"));
  CHECK_THAT(error_of({"--set", "precision.plan=bf16"}),
             Contains("error: --set precision.plan=bf16: the plan is that of --plan"));
  CHECK_THAT(error_of({"--set", "precision.planx=1"}), Contains("precision.planx"));
  CHECK_THAT(error_of({"--seq-length", "65"}), Contains("error: --seq-length 65 is longer than"));
}

TEST_CASE("bench step measures several plans one after another") {
  const Json list = run_bench(
      {"step", "--preset", "toy", "--micro-batch-size", "2", "--plan", "bf16,te-delayed,bf16"});
  REQUIRE(list.is_array());
  std::vector<std::string> plans;
  for (const Json& report : list) {
    plans.push_back(report.at("plan").get<std::string>());
    CHECK(number(report, "tokens_per_second") > 0);
    CHECK(report.at("layers") == list[0].at("layers"));
    CHECK(report.at("memory_bytes") == list[plans.back() == "bf16" ? 0 : 1].at("memory_bytes"));
  }
  CHECK(plans == std::vector<std::string>{"bf16", "te-delayed", "bf16"});
  const TempDir folder;
  const auto run = [&](int code, Words words) {
    words.insert(words.begin(), {"bench", "step", "--preset", "toy", "--seconds", "0.01"});
    return expect_code(code, folder.path(), words);
  };
  const Outcome misspelt = run(2, {"--device", "cpu", "--plan", "bf16,te-delayd", "--json"});
  CHECK_THAT(misspelt.err, Contains("--plan: no plan 'te-delayd'"));
  CHECK(misspelt.out.empty());  // nothing is measured before all plans are known
  CHECK_THAT(run(2, {"--plan", "bf16,fp32", "--timeline", "t.json"}).err,
             Contains("--timeline: is of one plan"));
  const std::string text = run(0, {"--device", "cpu", "--plan", "bf16,te-delayed"}).out;
  CHECK_THAT(text, Contains("plan                      bf16") &&
                       Contains("plan                      te-delayed"));
  const Json modeled =
      Json::parse(run(0, {"--device", "meta:h100", "--plan", "bf16,te-delayed", "--json"}).out);
  CHECK(modeled.size() == 2);
}

TEST_CASE("bench step says which GPUs it can model") {
  const TempDir folder;
  const Outcome outcome = expect_code(2, folder.path(), {"bench", "step", "--device", "meta:v100"});
  CHECK_THAT(outcome.err, Contains("unknown GPU 'v100' (expected a100, l4, rtx4090,"));
  const Outcome ranks = expect_code(
      2, folder.path(), {"bench", "step", "--device", "meta:h100", "--zero-stage", "1"});
  CHECK_THAT(ranks.err, Contains("the model is of one GPU"));
}

TEST_CASE("bench gemm sets FP8 with its casts against bf16") {
  const Json report = run_bench({"gemm", "--sizes", "32,16x48x64"});
  const Json& results = report.at("results");
  REQUIRE(results.size() == 18);
  double best_fp8 = 0;
  for (const Json& result : results) {
    if (result.at("operands").get<std::string>().find("e4m3") == 0) {
      best_fp8 = std::max(best_fp8, number(result, "gflops"));
    }
  }
  std::set<std::string> kinds;
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& result = results[i];
    CHECK(result.at("shape") == (i < 9 ? "32x32x32" : "16x48x64"));
    const Json& bf16 = results[i < 9 ? 1 : 10];
    REQUIRE(bf16.at("operands") == "bf16");
    const double rate = number(result, "gflops_with_casts");
    CHECK(number(result, "of_bf16") == Approx(rate / number(bf16, "gflops")));
    const std::string operands = result.at("operands");
    if (operands.find("e4m3") == 0) {
      CHECK(number(result, "share_of_ceiling") == Approx(rate / best_fp8));
    } else if (operands.find("int8") != 0) {
      CHECK(rate == number(result, "gflops"));
    }
    kinds.insert(operands);
  }
  CHECK(kinds == std::set<std::string>{"fp32", "bf16", "e4m3 delayed", "e4m3 current", "e4m3 row",
                                       "e4m3 1x128", "e4m3 1x128 x 128x128", "e4m3 1x32",
                                       "int8 row"});
}

TEST_CASE("bench products measures the GEMMs of each layer in every way") {
  const Json report =
      run_bench({"products", "--preset", "toy", "--vocabulary", "96", "--tokens", "48"});
  std::map<std::string, int> ways;  // of each product
  std::set<std::string> shapes;
  for (const Json& result : report.at("results")) {
    const std::string product = result.at("product");
    const std::string way = result.at("operands");
    ways[result.at("layer").get<std::string>() + " " + product] += 1;
    CHECK(number(result, "gflops") > 0);
    CHECK((product == "wgrad" || result.at("result") == "bf16"));
    CHECK((product != "fprop" || way.find("e5m2") == std::string::npos));
    if (way == "bf16") {
      shapes.insert(result.at("layer").get<std::string>() + " " + product + " " +
                    result.at("shape").get<std::string>());
    }
  }
  CHECK(ways.size() == 15);
  for (const auto& [product, count] : ways) {
    CAPTURE(product);
    const std::string pass = product.substr(product.find(' ') + 1);
    CHECK(count == (pass == "fprop" ? 7 : pass == "dgrad" ? 9 : 27));
  }
  for (const char* shape : {"head fprop 48x96x64", "head dgrad 48x64x96", "head wgrad 96x64x48"}) {
    CHECK(shapes.count(shape) == 1);
  }
  const Json some = run_bench(
      {"products", "--preset", "toy", "--vocabulary", "96", "--tokens", "48", "--modes", "row"});
  for (const Json& result : some.at("results")) {
    CHECK(result.at("operands") == "e4m3 row x e4m3 row");
  }
  const TempDir folder;
  CHECK_THAT(
      expect_code(2, folder.path(), {"bench", "products", "--device", "cpu", "--modes", "row,rows"})
          .err,
      Contains("--modes") && Contains("mx"));
}

TEST_CASE("a modeled step takes the rates of measured products of its GPU") {
  Json products =
      run_bench({"products", "--preset", "toy", "--vocabulary", "96", "--tokens", "48"});
  const TempDir folder;
  const fs::path path = folder.path() / "products.json";
  const auto run = [&](int code) {
    write_file(path, products.dump());
    return expect_code(code, folder.path(),
                       {"bench", "step", "--preset", "toy", "--vocabulary", "96", "--seq-length",
                        "48", "--micro-batch-size", "1", "--plan", "te-delayed", "--device",
                        "meta:h100", "--calibrate", path.string(), "--json"});
  };
  CHECK_THAT(run(2).err, Contains("--calibrate") && Contains("it was measured on 'cpu: "));
  products["device"] = "NVIDIA H200, sm_90";
  CHECK_THAT(run(2).err, Contains("it was measured on 'NVIDIA H200, sm_90', not on a h100"));
  products["device"] = "NVIDIA H100 80GB HBM3, sm_90";
  const auto seconds_of_products = [](const Json& report) {
    double seconds = 0;
    for (const Json& row : report.at("operations")) {
      const bool is_gemm = row.at("operation").get<std::string>().find("gemm") == 0;
      seconds += is_gemm ? number(row, "seconds") - 2e-6 * number(row, "launches") : 0.0;
    }
    return seconds;
  };
  const Json report = Json::parse(run(0).out);
  const Json& calls = report.at("calibration");
  CHECK(calls.at("gemms_by_shape") == 27);  // of two layers with four products, and of the head
  CHECK(calls.at("gemms_by_kind") == 0);
  CHECK(calls.at("gemms_assumed") == 0);
  for (Json& result : products.at("results")) {
    result["gflops"] = 4 * number(result, "gflops");
  }
  const double seconds = seconds_of_products(Json::parse(run(0).out));
  CHECK(seconds == Approx(seconds_of_products(report) / 4));
  for (const auto& [key, value] : {std::pair("shape", "48x96x64x2"), {"result", "int8"}}) {
    const Json known = products;
    products["results"][0][key] = value;
    CHECK_THAT(run(2).err, Contains("unknown product '") && Contains(value));
    products = known;
  }
  products.erase("results");
  CHECK_THAT(run(2).err, Contains("not a report of `fp8train bench products --json`"));
}

TEST_CASE("a step is measured with weights that take no time to draw") {
  const Json report = run_bench({"step", "--preset", "toy", "--micro-batch-size", "2",
                                 "--seq-length", "16", "--quick-weights"});
  CHECK(number(report, "tokens_per_second") > 0);
}

TEST_CASE("bench step writes a timeline of its last steps") {
  const TempDir folder;
  const fs::path path = folder.path() / "timeline.json";
  const Json report = run_bench({"step", "--preset", "toy", "--micro-batch-size", "2",
                                 "--seq-length", "16", "--timeline", path.string()});
  const TimelineContent content = check_timeline(Json::parse(read_file(path)));
  CHECK(content.ranks == std::set<int>{0});
  CHECK(content.flights.empty());
  for (const char* part : {"step", "forward", "head", "backward", "update"}) {
    CAPTURE(part);
    CHECK(content.spans.at(part) == 5);
  }
  CHECK(content.spans.at("attention_backward") == 10);  // two layers
  CHECK(number(report, "forward_seconds") > 0);
  CHECK(number(report, "backward_seconds") > 0);
  CHECK_FALSE(report.contains("exchange_seconds"));
  double shares = 0;
  for (const auto& [name, share] : report.at("time_shares").items()) {
    CHECK(content.spans.count(name) == (name == "outside operations" ? 0 : 1));
    CHECK(name != "start");  // a part of a step, not an operation
    shares += share.get<double>();
  }
  CHECK(shares == Approx(1.0));
  CHECK_THAT(
      expect_code(2, folder.path(),
                  {"bench", "step", "--device", "cpu", "--timeline", "nowhere/timeline.json"})
          .err,
      Contains("--timeline") && Contains("nowhere"));
}

TEST_CASE("bench refuses shapes that are none") {
  const TempDir folder;
  for (const char* sizes : {"0", "64x64", "64x64x", "64xax64", "1x2x3x4", "64,-1"}) {
    CAPTURE(sizes);
    CHECK_THAT(
        expect_code(2, folder.path(), {"bench", "gemm", "--device", "cpu", "--sizes", sizes}).err,
        Contains("--sizes"));
  }
}

}  // namespace
}  // namespace fp8train::test
