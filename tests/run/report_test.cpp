// The page of `fp8train report`.

#include "run_report.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "train/records/metric_list.h"

namespace fp8train {
namespace {

using Catch::Contains;
using Catch::VectorContains;

nlohmann::json constant_of(const std::string& page, const std::string& name) {
  const std::string begin = "const " + name + " = ";
  REQUIRE(page.find(begin) != std::string::npos);
  const size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find(";\n", at) - at));
}

/// The runs that a page shows.
nlohmann::json runs_of(const std::string& page) {
  return constant_of(page, "runs");
}

std::string line_of(int step) {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(step) +
         ",\"fp8\":{\"layers.0.mlp.up.x\":{\"element\":\"e4m3\",\"snr_db\":30.5,\"amax\":2}}}\n";
}

std::filesystem::path run_in(const test::TempDir& dir, const std::string& metrics) {
  std::filesystem::create_directories(dir / "run");
  test::write_file(dir / "run" / "metrics.jsonl", metrics);
  return dir / "run";
}

TEST_CASE("a report has a run's curves, tensors and texts") {
  const test::TempDir dir;
  std::string metrics;
  for (int step = 1; step <= 3200; ++step) {
    metrics += line_of(step);
  }
  metrics += "{\"step\":3200,\"val_loss\":1.5}\n{\"step\":32";  // the last line is being written
  const auto run = run_in(dir, metrics);
  test::write_file(run / "summary.json", "{\"plan\":\"te-delayed\"}");
  test::write_file(run / "config.resolved.yaml", "a: <!--<script>x</script>\n");
  const std::string page = report_page({run, run});
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(page.find("a: <") == std::string::npos);
  CHECK(page.find("http:") == page.find("http://www.w3.org/2000/svg"));
  CHECK(page.find("https:") == std::string::npos);
  const nlohmann::json runs = runs_of(page);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["summary"]["plan"] == "te-delayed");
  CHECK(runs[0]["config"] == "a: <!--<script>x</script>\n");
  CHECK(runs[0]["curves"]["val_loss"] == nlohmann::json::parse("[[3200,1.5]]"));
  const nlohmann::json& loss = runs[0]["curves"]["loss"];
  REQUIRE(loss.size() == 1067);  // three lines for each point
  CHECK(loss[0] == nlohmann::json::parse("[3,2.0]"));
  CHECK(loss.back() == nlohmann::json::parse("[3200,3199.5]"));
  const nlohmann::json& health = runs[0]["health"];
  CHECK(health["steps"].size() == 60);
  CHECK(health["steps"].back() == 3200);
  CHECK(health["tensors"] == nlohmann::json::parse("[\"layers.0.mlp.up.x\"]"));
  CHECK(health["elements"] == nlohmann::json::parse("[\"e4m3\"]"));
  CHECK(health["snr_db"][0].size() == 60);
  CHECK(health["snr_db"][0][59] == 30.5);
  CHECK(health["scale_exponent"][0][0].is_null());
}

TEST_CASE("a report has the last loads of experts") {
  const test::TempDir dir;
  const auto line = [](int step, const std::string& loads) {
    return "{\"step\":" + std::to_string(step) + ",\"loss\":1" + loads + "}\n";
  };
  const auto run = run_in(
      dir, line(1, R"(,"expert_loads":{"0":[400,0,0,0],"1":[100,100,100,100]})") +
               line(2, R"(,"expert_loads":{"0":[150,50,90,110],"1":[0,0,0,400]})") + line(3, ""));
  CHECK(runs_of(report_page({run}))[0]["loads"] ==
        nlohmann::json::parse(R"({"step":2,"layers":[[150,50,90,110],[0,0,0,400]]})"));
  const auto dense = run_in(dir, line(1, ""));
  CHECK(runs_of(report_page({dense}))[0]["loads"]["layers"].empty());
}

TEST_CASE("a report draws every metric that has a label") {
  const test::TempDir dir;
  nlohmann::json line = {{"step", 1}, {"tokens", 3}};
  for (const Metric& metric : kMetrics) {
    if (!metric.label.empty()) {
      line[std::string(metric.key)] = 0.5;
    }
  }
  REQUIRE(line.contains("mfu"));
  REQUIRE(line.contains("memory_bytes"));
  const std::string page = report_page({run_in(dir, line.dump() + "\n")});
  std::vector<std::string> labels;
  nlohmann::json curves = runs_of(page)[0]["curves"];
  for (const nlohmann::json& metric : constant_of(page, "metrics")) {
    CAPTURE(metric);
    labels.push_back(metric.at("label"));
    CHECK(curves.erase(metric.at("key").get<std::string>()) == 1);
  }
  CHECK(curves.empty());
  CHECK_THAT(labels, VectorContains(std::string("values clipped")));
  CHECK_THAT(page, Contains("for (const metric of metrics) drawCurves(metric);"));
}

/// A run of steps 1, 2, ... with these losses.
std::filesystem::path run_of(const test::TempDir& dir, const std::string& plan,
                             const std::vector<double>& losses) {
  std::string metrics;
  for (size_t i = 0; i < losses.size(); ++i) {
    metrics += nlohmann::json{{"step", i + 1}, {"loss", losses[i]}}.dump() + "\n";
  }
  const auto run = run_in(dir, metrics);
  test::write_file(run / "summary.json", nlohmann::json{{"plan", plan}}.dump());
  return run;
}

TEST_CASE("a report has the gap of each run to the first, and the band of runs of one plan") {
  const test::TempDir a, b, c, d;
  const std::string page =
      report_page({run_of(a, "bf16", {2, 4}), run_of(b, "te-current", {2.02, 4.2, 9}),
                   run_of(c, "bf16", {1.98, 4}), run_of(d, "te-current", {2.04})});
  const nlohmann::json loss = constant_of(page, "gaps").at("loss");
  const auto near = [](const nlohmann::json& curve, const std::vector<double>& expected) {
    REQUIRE(curve.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(curve[i][0] == i + 1);
      CHECK(curve[i][1].get<double>() == Approx(expected[i]).margin(1e-9));
    }
  };
  near(loss["curves"][0], {0, 0});
  near(loss["curves"][1], {1, 5});
  near(loss["curves"][2], {-1, 0});
  near(loss["curves"][3], {2});
  near(loss["chance"], {1, 0});
  const std::string other = report_page({run_of(a, "bf16", {2}), run_of(b, "te-current", {2.02})});
  CHECK(constant_of(other, "gaps")["loss"]["chance"].empty());
  CHECK(constant_of(report_page({run_of(a, "bf16", {2})}), "gaps").empty());
}

TEST_CASE("gaps of a long run are means over neighbours, not of their gaps") {
  const test::TempDir a, b;
  std::vector<double> first(120, 1.0);
  std::vector<double> second(120, 1.0);
  first[0] = 3.0;
  second[0] = 2.0;
  const std::string page = report_page({run_of(a, "bf16", first), run_of(b, "te-current", second)});
  const nlohmann::json curve = constant_of(page, "gaps")["loss"]["curves"][1];
  REQUIRE(curve.size() == 60);
  CHECK(curve[0] == nlohmann::json::parse("[2,-25.0]"));
  CHECK(curve[59][0] == 120);
}

TEST_CASE("a report of what is no run is an error with its location") {
  const test::TempDir dir;
  CHECK_THROWS_WITH(report_page({dir / "none"}), Contains("none/metrics.jsonl: cannot be read"));
  const auto run = run_in(dir, line_of(1) + "{\"loss\":1}\n");
  CHECK_THROWS_WITH(report_page({run}), Contains("metrics.jsonl:2: not a line of metrics"));
  CHECK_THROWS_WITH(report_page({dir.path()}),
                    Contains("is not a run, but holds some") && Contains(run.string()));
  CHECK(runs_of(report_page({run_in(dir, "")}))[0]["curves"].empty());
}

TEST_CASE("a report leaves out lines with NUL bytes, which a power failure leaves") {
  const test::TempDir dir;
  const std::string zeros(4096, '\0');
  const auto run = run_in(dir, line_of(1) + "{\"step\":2,\"lo" + zeros + "\n" + line_of(3) + zeros);
  const auto steps = runs_of(report_page({run}))[0]["curves"]["loss"];
  REQUIRE(steps.size() == 2);
  CHECK(steps[0][0] == 1);
  CHECK(steps[1][0] == 3);
}

TEST_CASE("a report waits for nobody who might write into a FIFO") {
  const test::TempDir dir;
  const auto run = run_in(dir, "");
  std::filesystem::remove(run / "metrics.jsonl");
  REQUIRE(mkfifo((run / "metrics.jsonl").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(report_page({run}), Contains("metrics.jsonl: it is a FIFO"));
}

}  // namespace
}  // namespace fp8train
