#pragma once
// Results of models that are divided into pipeline stages, and their comparison.

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "support/parameters.h"

namespace fp8train::test {

/// The results of a training. The stages of a pipeline add their parts.
struct Trained {
  std::vector<double> losses, norms;
  double evaluated = 0;
  std::map<std::string, std::vector<float>> values;  // and moments
  std::map<std::string, float> scales;
  bool as_planned = true;
  bool agree = true;  // on what several ranks have

  void add(const Trained& stage) {
    losses = stage.losses;
    norms = stage.norms;
    evaluated = stage.evaluated;
    for (const auto& [name, of_stage] : stage.values) {
      const auto [found, is_new] = values.emplace(name, of_stage);
      agree = agree && (is_new || same_bits(found->second, of_stage));
    }
    scales.insert(stage.scales.begin(), stage.scales.end());
    as_planned = as_planned && stage.as_planned;
  }
};

inline void check_same(const Trained& trained, const Trained& wanted) {
  CHECK(trained.losses == wanted.losses);
  CHECK(trained.norms == wanted.norms);
  CHECK(trained.evaluated == wanted.evaluated);
  CHECK(trained.as_planned);
  CHECK(trained.agree);
  REQUIRE(trained.values.size() == wanted.values.size());
  for (const auto& [name, values] : wanted.values) {
    CAPTURE(name);
    REQUIRE(trained.values.contains(name));
    CHECK(same_bits(trained.values.at(name), values));
  }
  REQUIRE(trained.scales.size() == wanted.scales.size());
  for (const auto& [name, scale] : wanted.scales) {
    CAPTURE(name, scale);
    CHECK(trained.scales.at(name) == scale);
  }
}

}  // namespace fp8train::test
