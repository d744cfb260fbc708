// The operations of a mixture of experts against the definition in fp64: choices, weights, slots,
// and gradients by differences.

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "ops/op_test_support.h"
#include "ops/routing/router.h"
#include "ops/routing/token_rows.h"

namespace fp8train::test {
namespace {

using Doubles = std::vector<double>;

const ops::RouterRule kRules[] = {
    {.experts = 8, .per_token = 2, .normalizes = true},
    {.experts = 5, .per_token = 1},
    {.experts = 1, .per_token = 1},
    {.experts = 6, .per_token = 3, .sigmoid = true, .scale = 1.5F},
    {.experts = 8, .per_token = 3, .groups = 4, .groups_per_token = 2, .normalizes = true},
    {.experts = 8,
     .per_token = 3,
     .groups = 4,
     .groups_per_token = 2,
     .sigmoid = true,
     .normalizes = true,
     .scale = 2.5F}};

Doubles scores_of(const ops::RouterRule& rule, const Doubles& logits) {
  Doubles scores;
  double sum = 0;
  for (const double logit : logits) {
    scores.push_back(rule.sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit));
    sum += scores.back();
  }
  for (double& score : scores) {
    score /= rule.sigmoid ? 1 : sum;
  }
  return scores;
}

/// The indices of keys in descending order; of equal ones the first comes first.
std::vector<size_t> in_order(const Doubles& keys) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return keys[a] > keys[b]; });
  return order;
}

std::vector<size_t> chosen_of(const ops::RouterRule& rule, Doubles keys) {
  const auto size = static_cast<size_t>(rule.experts / rule.groups);
  Doubles groups;
  for (size_t begin = 0; rule.groups > 1 && begin < keys.size(); begin += size) {
    Doubles group(keys.begin() + static_cast<std::ptrdiff_t>(begin),
                  keys.begin() + static_cast<std::ptrdiff_t>(begin + size));
    std::sort(group.rbegin(), group.rend());
    groups.push_back(group[0] + group[1]);
  }
  const std::vector<size_t> order = in_order(groups);
  for (size_t i = static_cast<size_t>(rule.groups_per_token); i < order.size(); ++i) {
    std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(order[i] * size), size, -INFINITY);
  }
  std::vector<size_t> chosen = in_order(keys);
  chosen.resize(static_cast<size_t>(rule.per_token));
  return chosen;
}

Doubles probabilities_of(const ops::RouterRule& rule, const Doubles& logits,
                         const std::vector<size_t>& chosen) {
  const Doubles scores = scores_of(rule, logits);
  double sum = 0;
  for (const size_t expert : chosen) {
    sum += scores[expert];
  }
  Doubles probabilities;
  for (const size_t expert : chosen) {
    probabilities.push_back(scores[expert] / (rule.normalizes ? sum : 1) *
                            static_cast<double>(rule.scale));
  }
  return probabilities;
}

/// Arrays of a call.
struct Routed {
  ops::RouterRule rule;
  int64_t rows;
  Array logits, bias, keys, chosen, probabilities;

  Routed(const ops::RouterRule& of, int64_t count, const std::vector<float>& values)
      : rule(of),
        rows(count),
        logits(DType::f32, {rows, of.experts}, values),
        bias(DType::f32, {of.experts}, random_values(of.experts, 9, 0.1F)),
        keys(DType::f32, {rows, of.experts}),
        chosen(DType::i32, {rows, of.per_token}),
        probabilities(DType::f32, {rows, of.per_token}) {}

  ops::Route call() {
    return {.rule = rule,
            .logits = logits,
            .bias = bias,
            .keys = keys,
            .chosen = chosen,
            .probabilities = probabilities};
  }
  Doubles row(int64_t index) const {
    Doubles values;
    for (int64_t i = 0; i < rule.experts; ++i) {
      values.push_back(logits.get(index * rule.experts + i));
    }
    return values;
  }
  std::vector<size_t> chosen_in(int64_t index) {
    const int32_t* const first = chosen.as<int32_t>() + index * rule.per_token;
    return {first, first + rule.per_token};
  }
};

TEST_CASE("a router chooses by score plus bias, within the best groups, and weighs by score") {
  for (const ops::RouterRule& rule : kRules) {
    CAPTURE(rule.experts, rule.per_token, rule.sigmoid, rule.groups);
    Routed routed(rule, 37, random_values(37 * rule.experts, 3, 2.0F));
    ops::route(cpu_stream(), routed.call());
    for (int64_t row = 0; row < routed.rows; ++row) {
      const Doubles logits = routed.row(row);
      Doubles keys = scores_of(rule, logits);
      for (size_t i = 0; i < keys.size(); ++i) {
        keys[i] += static_cast<double>(routed.bias.get(static_cast<int64_t>(i)));
      }
      const std::vector<size_t> chosen = chosen_of(rule, keys);
      REQUIRE(routed.chosen_in(row) == chosen);
      const Doubles wanted = probabilities_of(rule, logits, chosen);
      for (size_t j = 0; j < wanted.size(); ++j) {
        const auto at = row * rule.per_token + static_cast<int64_t>(j);
        CHECK(static_cast<double>(routed.probabilities.get(at)) == Approx(wanted[j]).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("of equal scores a router chooses the first experts, and NaN comes last") {
  Routed routed({.experts = 4, .per_token = 2}, 2, {1, 1, 1, 1, NAN, 0, 0, 0});
  ops::Route call = routed.call();
  call.rule.sigmoid = true;
  call.bias = {};
  ops::route(cpu_stream(), call);
  CHECK(routed.chosen_in(0) == std::vector<size_t>{0, 1});
  CHECK(routed.chosen_in(1) == std::vector<size_t>{1, 2});
}

TEST_CASE("gradients of a router's logits are those of its outputs and its own losses") {
  constexpr int64_t kRows = 6;
  constexpr int64_t kSequences = 2;
  constexpr double kBalance = 0.3;
  constexpr double kZ = 0.2;
  const float gradient_scale = 0.5F;
  for (const ops::RouterRule& rule : kRules) {
    CAPTURE(rule.experts, rule.per_token, rule.sigmoid, rule.normalizes);
    Routed routed(rule, kRows, random_values(kRows * rule.experts, 4));
    ops::route(cpu_stream(), routed.call());
    Array counts(DType::f32, {kSequences, rule.experts});
    ops::count_choices(cpu_stream(), routed.chosen, counts);
    Array gradients(DType::f32, {kRows, rule.per_token}, random_values(kRows * rule.per_token, 5));
    Array d_logits(DType::f32, {kRows, rule.experts});
    Array losses(DType::f32, {2, kRows});
    ops::route_backward(cpu_stream(), {.rule = rule,
                                       .logits = routed.logits,
                                       .chosen = routed.chosen,
                                       .gradients = gradients,
                                       .d_logits = d_logits,
                                       .counts = counts,
                                       .balance_loss = static_cast<float>(kBalance),
                                       .z_loss = static_cast<float>(kZ),
                                       .gradient_scale = &gradient_scale,
                                       .gradient_factor = 3.0F,
                                       .losses = losses});
    for (int64_t row = 0; row < kRows; ++row) {
      double of_row[2] = {};
      // Of the sum of the outputs times their gradients, and the losses times 1.5.
      const auto loss = [&](const Doubles& logits) {
        const Doubles probabilities = probabilities_of(rule, logits, routed.chosen_in(row));
        double value = 0;
        for (size_t j = 0; j < probabilities.size(); ++j) {
          value +=
              probabilities[j] *
              static_cast<double>(gradients.get(row * rule.per_token + static_cast<int64_t>(j)));
        }
        const Doubles scores = scores_of(rule, logits);
        const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
        double exponentials = 0;
        of_row[0] = 0;
        for (size_t i = 0; i < scores.size(); ++i) {
          const auto count = static_cast<double>(
              counts.get(row / (kRows / kSequences) * rule.experts + static_cast<int64_t>(i)));
          const double share = count * static_cast<double>(rule.experts) /
                               static_cast<double>(rule.per_token * kRows / kSequences);
          of_row[0] += kBalance * share * scores[i] / all;
          exponentials += std::exp(logits[i]);
        }
        of_row[1] = kZ * std::pow(std::log(exponentials), 2.0);
        return value + 1.5 * (of_row[0] + of_row[1]);
      };
      loss(routed.row(row));
      CHECK(static_cast<double>(losses.get(row)) == Approx(of_row[0]).epsilon(1e-5));
      CHECK(static_cast<double>(losses.get(kRows + row)) == Approx(of_row[1]).epsilon(1e-5));
      for (size_t i = 0; i < static_cast<size_t>(rule.experts); ++i) {
        constexpr double kStep = 1e-5;
        Doubles above = routed.row(row);
        Doubles below = above;
        above[i] += kStep;
        below[i] -= kStep;
        const double wanted = (loss(above) - loss(below)) / (2 * kStep);
        const auto at = row * rule.experts + static_cast<int64_t>(i);
        CHECK(static_cast<double>(d_logits.get(at)) == Approx(wanted).epsilon(1e-5).margin(2e-6));
      }
    }
  }
}

TEST_CASE("biases move towards equal loads, by the sums over ranks, also in parts") {
  Array loads(DType::i64, {2, 2, 4});  // the last is of dropped choices
  const int64_t values[] = {9, 9, 9, 7, 1, 5, 3, 100, 9, 9, 9, 7, 2, 1, 6, 100};
  std::copy(std::begin(values), std::end(values), loads.as<int64_t>());
  for (const int64_t first : {0, 1}) {
    Array bias(DType::f32, {3 - first}, std::vector<float>(static_cast<size_t>(3 - first), 1.0F));
    ops::update_router_bias(
        cpu_stream(), {.loads = loads, .layer = 1, .rate = 0.25F, .bias = bias, .first = first});
    const std::array<float, 3> wanted = {1.25F, 1.0F, 0.75F};  // of 3, 6 and 9
    for (int64_t i = first; i < 3; ++i) {
      CHECK(bias.get(i - first) == wanted[static_cast<size_t>(i)]);
    }
  }
}

TEST_CASE("routing has the same bits at every level and with any number of threads") {
  CHECK(same_everywhere([](const ops::OpTable& table) {
    Bits bits;
    const ops::RouterRule& rule = kRules[5];
    constexpr int64_t kRows = 3001;
    Routed routed(rule, kRows, random_values(kRows * rule.experts, 11));
    table.route(cpu_stream(), routed.call());
    Array gradients(DType::f32, {kRows, rule.per_token}, random_values(kRows * rule.per_token, 5));
    Array d_logits(DType::f32, {kRows, rule.experts});
    table.route_backward(cpu_stream(), {.rule = rule,
                                        .logits = routed.logits,
                                        .chosen = routed.chosen,
                                        .gradients = gradients,
                                        .d_logits = d_logits,
                                        .z_loss = 0.1F});
    Array x(DType::bf16, {kRows, 40}, random_values(kRows * 40, 12));
    Array products(DType::f32, {kRows, rule.per_token});
    table.dot_rows(cpu_stream(), x, x, routed.chosen, products);
    for (const Array* array : {&routed.chosen, &routed.probabilities, &d_logits, &products}) {
      bits.add(*array);
    }
    return bits;
  }));
}

}  // namespace
}  // namespace fp8train::test
