// The rows of tokens on their way to experts and back, against the definition in fp64.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "ops/op_test_support.h"
#include "ops/routing/router.h"
#include "ops/routing/token_rows.h"

namespace fp8train::test {
namespace {

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

TEST_CASE("experts may have different numbers of slots") {
  const std::vector<int64_t> counts = {0, 5, 3, 20};
  Array chosen = choices_of(counts);
  Array begins(DType::i32, {5});
  const int32_t firsts[] = {0, 2, 8, 10, 40};  // 2, 6, 2 and 30 slots
  std::copy(std::begin(firsts), std::end(firsts), begins.as<int32_t>());
  Array slots(DType::i32, {chosen.count(), 1});
  Array sources(DType::i32, {40});
  std::fill_n(sources.as<int32_t>(), 40, 7);
  ops::assign_slots(cpu_stream(), {.chosen = chosen,
                                   .experts = 4,
                                   .capacity = 10,
                                   .begins = begins,
                                   .slots = slots,
                                   .sources = sources});
  std::vector<int32_t> wanted(40, -1);
  std::vector<int32_t> used(4);
  for (int64_t i = 0; i < chosen.count(); ++i) {
    const auto expert = static_cast<size_t>(chosen.as<int32_t>()[i]);
    const int32_t slot = firsts[expert] + used[expert]++;
    const bool fits = slot < firsts[expert + 1];
    CHECK(slots.as<int32_t>()[i] == (fits ? slot : -1));
    if (fits) {
      wanted[static_cast<size_t>(slot)] = static_cast<int32_t>(i);
    }
  }
  CHECK(std::equal(wanted.begin(), wanted.end(), sources.as<int32_t>()));
  CHECK(std::ranges::count(wanted, -1) == 40 - 5 - 2 - 20);
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

}  // namespace
}  // namespace fp8train::test
