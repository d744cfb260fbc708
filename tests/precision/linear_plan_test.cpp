#include "precision/linear_plan.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace fp8train;
using Catch::Matchers::Contains;

namespace {

std::vector<LinearSite> four_blocks() {
  std::vector<LinearSite> sites;
  for (int64_t i = 0; i < 4; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    sites.push_back({layer + "qkv", 64, 192, i, false});
    sites.push_back({layer + "down", 172, 64, i, false});
  }
  sites.push_back({"head", 64, 80, -1, true});
  return sites;
}

std::vector<bool> scaled(const ExemptionRules& rules) {
  PrecisionPlan plan = plan_named("te-current");
  plan.exemptions = rules;
  std::vector<bool> result;
  for (const LinearPlan& linear : plan_linears(plan, four_blocks())) {
    CHECK(linear.is_scaled() == linear.exempt_reason.empty());
    result.push_back(linear.is_scaled());
  }
  return result;
}

}  // namespace

TEST_CASE("the head and dimensions that are not multiples of 16 are exempt by themselves") {
  CHECK(scaled({}) == std::vector<bool>{true, false, true, false, true, false, true, false, false});
  ExemptionRules with_head;
  with_head.head = false;
  CHECK(scaled(with_head).back());
}

TEST_CASE("granules of 32 ask for dimensions that are multiples of 32") {
  const std::vector<LinearSite> sites = {{"up", 64, 192, 0, false}, {"down", 80, 64, 0, false}};
  CHECK(plan_linears(plan_named("te-blockwise"), sites)[1].is_scaled());
  const std::vector<LinearPlan> plans = plan_linears(plan_named("te-mxfp8"), sites);
  CHECK(plans[0].is_scaled());
  CHECK(plans[1].exempt_reason == "dimension 80 is not a multiple of 32");
}

TEST_CASE("first and last blocks, first and last linears, patterns and sizes") {
  ExemptionRules blocks;
  blocks.first_blocks = 1;
  blocks.last_blocks = 2;
  CHECK(scaled(blocks) ==
        std::vector<bool>{false, false, true, false, false, false, false, false, false});
  ExemptionRules linears;
  linears.first_linears = 3;
  linears.last_linears = 2;
  CHECK(scaled(linears) ==
        std::vector<bool>{false, false, false, false, true, false, false, false, false});
  ExemptionRules pattern;
  pattern.patterns = {"layers.2.*"};
  CHECK(scaled(pattern) ==
        std::vector<bool>{true, false, true, false, false, false, true, false, false});
  ExemptionRules size;
  size.min_dimension = 65;
  CHECK(scaled(size) == std::vector<bool>(9, false));
}

TEST_CASE("a pattern that matches nothing is an error that lists the layers") {
  PrecisionPlan plan = plan_named("te-current");
  plan.exemptions.patterns = {"*.qvk"};
  CHECK_THROWS_WITH(plan_linears(plan, four_blocks()),
                    Contains("'*.qvk'") && Contains("layers.0.qkv") && Contains("head"));
}

TEST_CASE("globs") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("layers.?.qkv", "layers.3.qkv"));
  CHECK_FALSE(glob_match("layers.?.qkv", "layers.13.qkv"));
  CHECK(glob_match("*a*b", "xxaxxab"));
  CHECK_FALSE(glob_match("*a*b", "xxaxxabc"));
  CHECK_FALSE(glob_match("", "a"));
}
