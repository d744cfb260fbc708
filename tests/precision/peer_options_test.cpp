// The table of docs/use/plans.md that says how an option of a source is written here.

#include <catch2/catch.hpp>
#include <fstream>

#include "config/load.h"
#include "precision/plan.h"

namespace fp8train::test::peer_options {
namespace {

/// The texts between backquotes of the last two columns.
std::pair<std::string, std::string> columns_of(const std::string& line) {
  const size_t third = line.rfind('|');
  const size_t second = line.rfind('|', third - 1);
  const size_t first = line.rfind('|', second - 1);
  return {line.substr(first + 3, second - first - 5), line.substr(second + 3, third - second - 5)};
}

std::string gemm_text(const GemmPlan& gemm) {
  return std::string(name_of(gemm.a.dtype)) + " x " + std::string(name_of(gemm.b.dtype)) +
         (gemm.fast_accumulate ? " fast" : "");
}

PrecisionPlan plan_of(const std::string& keys) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text =
      "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 100}\nprecision: " + keys +
      "\n";
  return resolve_plan(load_settings(request).precision);
}

}  // namespace

TEST_CASE("the page's options of the sources resolve to the GEMMs that it lists") {
  std::ifstream page(FP8TRAIN_GOLDEN_DIR "/../../docs/use/plans.md");
  REQUIRE(page.good());
  bool inside = false;
  size_t rows = 0;
  for (std::string line; std::getline(page, line);) {
    inside = (inside || line == "<!-- peers: begin -->") && line != "<!-- peers: end -->";
    if (!inside || !line.starts_with("| ") || line.starts_with("| there")) {
      continue;
    }
    const auto [keys, gemms] = columns_of(line);
    INFO(keys);
    const PrecisionPlan plan = plan_of(keys);
    CHECK(gemm_text(plan.fprop) + ", " + gemm_text(plan.dgrad) + ", " + gemm_text(plan.wgrad) ==
          gemms);
    rows += 1;
  }
  CHECK(rows == 20);
  const PrecisionPlan squares =
      plan_of("{plan: te-mxfp8, fprop_w: e4m3 32x32 e8m0, dgrad_w: e4m3 32x32 e8m0}");
  CHECK(squares.fprop.b == squares.dgrad.b);
  CHECK(describe(squares.fprop.b) == "e4m3 32x32 current e8m0");
  CHECK(describe(plan_of("{plan: te-blockwise, power_2_scale: false}").fprop.a) ==
        "e4m3 1x128 current");
  CHECK(describe(plan_of("{plan: te-current, power_2_scale: true}").dgrad.a) ==
        "e5m2 tensor current pow2");
  const PrecisionPlan primary = plan_of("{plan: te-current, weight: e4m3, master_weight: fp32}");
  CHECK(primary.weight == primary.fprop.b);
  CHECK(primary.master_weight == plain(DType::f32));
  CHECK(describe(plan_of("{plan: te-current, weight: e4m3}").weight) == "e4m3 tensor current");
}

}  // namespace fp8train::test::peer_options
