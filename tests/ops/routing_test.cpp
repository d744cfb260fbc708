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

/// Tokens whose choices are `counts` of each expert, spread over the rows.
Array choices_of(const std::vector<int64_t>& counts) {
  std::vector<std::pair<double, int32_t>> choices;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    for (int64_t i = 0; i < counts[expert]; ++i) {
      choices.emplace_back((static_cast<double>(i) + 0.5) / static_cast<double>(counts[expert]),
                           static_cast<int32_t>(expert));
    }
  }
  std::sort(choices.begin(), choices.end());
  Array chosen(DType::i32, {static_cast<int64_t>(choices.size()), 1});
  for (size_t i = 0; i < choices.size(); ++i) {
    chosen.as<int32_t>()[i] = choices[i].second;
  }
  return chosen;
}

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

TEST_CASE("slots are taken in the order of tokens, and those beyond the capacity are dropped") {
  const std::vector<int64_t> counts = {0, 1, 15, 16, 17, 127, 128, 129};
  Array chosen = choices_of(counts);
  const auto experts = static_cast<int64_t>(counts.size());
  for (const int64_t capacity : {16, 128, 144}) {
    CAPTURE(capacity);
    Array slots(DType::i32, {chosen.count(), 1});
    Array sources(DType::i32, {experts * capacity});
    ops::assign_slots(cpu_stream(), {.chosen = chosen,
                                     .experts = experts,
                                     .capacity = capacity,
                                     .slots = slots,
                                     .sources = sources});
    std::vector<int64_t> used(counts.size());
    for (int64_t i = 0; i < chosen.count(); ++i) {
      const int32_t expert = chosen.as<int32_t>()[i];
      const int64_t at = used[static_cast<size_t>(expert)]++;
      const int64_t slot = expert * capacity + at;
      CHECK(slots.as<int32_t>()[i] == (at < capacity ? slot : -1));
      if (at < capacity) {
        CHECK(sources.as<int32_t>()[slot] == i);
      }
    }
    CHECK(used == counts);
    int64_t unused = 0;
    int64_t dropped = 0;
    for (const int64_t count : counts) {
      unused += std::max<int64_t>(capacity - count, 0);
      dropped += std::max<int64_t>(count - capacity, 0);
    }
    CHECK(std::count(sources.as<int32_t>(), sources.as<int32_t>() + sources.count(), -1) == unused);
    Array of_sequence(DType::f32, {1, experts});
    ops::count_choices(cpu_stream(), chosen, of_sequence);
    Array loads(DType::i64, {experts + 1});
    std::fill_n(loads.as<int64_t>(), experts + 1, 1);  // is added to
    ops::add_loads(cpu_stream(), of_sequence, capacity, loads);
    for (int64_t i = 0; i < experts; ++i) {
      CHECK(loads.as<int64_t>()[i] == counts[static_cast<size_t>(i)] + 1);
    }
    CHECK(loads.as<int64_t>()[experts] == dropped + 1);
  }
}

TEST_CASE("rows go to their slots and come back weighted, and unused slots are zero") {
  constexpr int64_t kRows = 5;
  constexpr int64_t kSlots = 8;
  for (const FloatType type : kFloatTypes) {
    for (const int64_t width : {1, 16, 37}) {
      CAPTURE(name_of(type.dtype), width);
      Array x(type.dtype, {kRows, width}, random_values(kRows * width, 1));
      Array rows(type.dtype, {kSlots, width},
                 std::vector<float>(static_cast<size_t>(kSlots * width), NAN));
      Array weights(DType::f32, {kRows, 2}, random_values(kRows * 2, 2));
      Array slots(DType::i32, {kRows, 2});
      Array sources(DType::i32, {kSlots});
      std::fill_n(sources.as<int32_t>(), kSlots, -1);
      for (int32_t i = 0; i < 2 * kRows; ++i) {
        const int32_t slot = i % 3 == 2 ? -1 : i * 3 % 8;
        slots.as<int32_t>()[i] = slot;
        if (slot >= 0 && sources.as<int32_t>()[slot] < 0) {
          sources.as<int32_t>()[slot] = i;
        } else {
          slots.as<int32_t>()[i] = -1;
        }
      }
      ops::send_rows(cpu_stream(), x, sources, weights, true, rows);
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        const int32_t source = sources.as<int32_t>()[slot];
        for (int64_t c = 0; c < width; ++c) {
          const double wanted = source < 0 ? 0.0
                                           : static_cast<double>(weights.get(source)) *
                                                 static_cast<double>(x.get(source / 2 * width + c));
          CHECK(static_cast<double>(rows.get(slot * width + c)) ==
                Approx(wanted).epsilon(2 * type.rounding));
        }
      }
      Array addend(DType::f32, {kRows, width}, random_values(kRows * width, 6));
      for (const bool adds : {false, true}) {
        Array y(type.dtype, {kRows, width},
                adds ? random_values(kRows * width, 7)
                     : std::vector<float>(static_cast<size_t>(kRows * width), NAN));
        const std::vector<float> before = y.values();
        ops::return_rows(cpu_stream(), {.x = rows,
                                        .slots = slots,
                                        .weights = weights,
                                        .addend = addend,
                                        .adds = adds,
                                        .y = y});
        Array products(DType::f32, {kRows, 2});
        ops::dot_rows(cpu_stream(), x, rows, slots, products);
        for (int64_t row = 0; row < kRows; ++row) {
          double dots[2] = {};
          for (int64_t c = 0; c < width; ++c) {
            const int64_t at = row * width + c;
            double sum = addend.get(at);
            sum += adds ? before[static_cast<size_t>(at)] : 0.0;
            double magnitude = std::abs(sum);
            for (int64_t j = 0; j < 2; ++j) {
              const int64_t slot = slots.as<int32_t>()[2 * row + j];
              const double value = slot < 0 ? 0.0 : static_cast<double>(rows.get(slot * width + c));
              sum += static_cast<double>(weights.get(2 * row + j)) * value;
              magnitude += std::abs(value);
              dots[j] += static_cast<double>(x.get(at)) * value;
            }
            CHECK(std::abs(static_cast<double>(y.get(at)) - sum) <=
                  2 * type.rounding * std::abs(sum) + 1e-6 * magnitude);
          }
          for (int64_t j = 0; j < 2; ++j) {
            CHECK(static_cast<double>(products.get(2 * row + j)) ==
                  Approx(dots[j]).epsilon(1e-4).margin(1e-5));
          }
        }
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
