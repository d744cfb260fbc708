// Kernels of a mixture of experts: exact, since a row of a router is the same code as the cpu's,
// and sums have the same order.

#include <array>
#include <catch2/catch.hpp>

#include "numeric/with_type.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/routing/router.h"
#include "ops/routing/token_rows.h"

namespace fp8train::test {
namespace {

const ops::RouterRule kRules[] = {{.experts = 1, .per_token = 1},
                                  {.experts = 7, .per_token = 3, .normalizes = true},
                                  {.experts = 300, .per_token = 2, .sigmoid = true, .scale = 1.5F},
                                  {.experts = 16,
                                   .per_token = 4,
                                   .groups = 4,
                                   .groups_per_token = 2,
                                   .sigmoid = true,
                                   .normalizes = true,
                                   .scale = 2.5F}};

struct Routed {
  View chosen, probabilities, slots, sources;
};

/// A quarter of the choices is dropped, and most slots of rare experts are unused.
Routed route(Side& side, const ops::RouterRule& rule, const View& logits, const View& bias) {
  const int64_t rows = logits.shape.rows();
  const int64_t capacity = (rows * rule.per_token / rule.experts * 3 + 3) / 4;
  const Shape choices = {rows, rule.per_token};
  Routed routed = {side.space(DType::i32, choices), side.space(DType::f32, choices),
                   side.space(DType::i32, choices),
                   side.space(DType::i32, {rule.experts * capacity})};
  ops::route(side.stream(), {.rule = rule,
                             .logits = logits,
                             .bias = bias,
                             .keys = side.space(DType::f32, logits.shape),
                             .chosen = routed.chosen,
                             .probabilities = routed.probabilities});
  ops::assign_slots(side.stream(), {.chosen = routed.chosen,
                                    .experts = rule.experts,
                                    .capacity = capacity,
                                    .slots = routed.slots,
                                    .sources = routed.sources});
  return routed;
}

TEST_CASE("a router and its gradient are exact", "[cuda][routing]") {
  for (const ops::RouterRule& rule : kRules) {
    for (const int64_t rows : {2, 258, 1026}) {
      for (const bool is_finite : {true, false}) {
        INFO(rule.experts << " experts, " << rows << " rows");
        const int64_t count = rows * rule.experts;
        const Array logits(DType::f32, {rows, rule.experts},
                           is_finite ? random_values(count, 1) : adversarial_values(count, 1));
        const Array bias(DType::f32, {rule.experts}, random_values(rule.experts, 2, 0.1F));
        const Array gradients(DType::f32, {rows, rule.per_token},
                              random_values(rows * rule.per_token, 3));
        Array begins(DType::i32, {rule.experts + 1});  // expert i has i + 1 slots
        for (int64_t i = 0; i <= rule.experts; ++i) {
          begins.as<int32_t>()[i] = static_cast<int32_t>(i * (i + 1) / 2);
        }
        const auto run = [&](Side& side) {
          const View on_device = side.put(logits);
          const Routed routed = route(side, rule, on_device, side.put(bias));
          const View counts = side.space(DType::f32, {2, rule.experts});
          ops::count_choices(side.stream(), routed.chosen, counts);
          const View loads = side.put(Array(DType::i64, {rule.experts + 1}));
          ops::add_loads(side.stream(), counts, rows * rule.per_token / rule.experts, loads);
          const View slots = side.space(DType::i32, routed.slots.shape);
          const View sources = side.space(DType::i32, {rule.experts * (rule.experts + 1) / 2});
          ops::assign_slots(side.stream(), {.chosen = routed.chosen,
                                            .experts = rule.experts,
                                            .begins = side.put(begins),
                                            .slots = slots,
                                            .sources = sources});
          const View d_logits = side.space(DType::f32, on_device.shape);
          const View losses = side.space(DType::f32, {2, rows});
          ops::route_backward(side.stream(), {.rule = rule,
                                              .logits = on_device,
                                              .chosen = routed.chosen,
                                              .gradients = side.put(gradients),
                                              .d_logits = d_logits,
                                              .counts = counts,
                                              .balance_loss = 0.1F,
                                              .z_loss = 0.01F,
                                              .gradient_scale = side.put_value(2.0F),
                                              .gradient_factor = 0.25F,
                                              .losses = losses});
          return std::array{side.get(routed.chosen), side.get(routed.probabilities),
                            side.get(routed.slots),  side.get(routed.sources),
                            side.get(counts),        side.get(loads),
                            side.get(d_logits),      side.get(slots),
                            side.get(sources),       side.get(losses)};
        };
        const auto cuda = on_cuda(run);
        const auto cpu = on_cpu(run);
        for (size_t i = 0; i < cpu.size(); ++i) {
          INFO("result " << i);
          CHECK(same_values(cuda[i], cpu[i]));
        }
      }
    }
  }
}

TEST_CASE("rows to experts and back are exact", "[cuda][routing]") {
  const ops::RouterRule& rule = kRules[1];
  constexpr int64_t kRows = 300;
  for (const DType type : FloatTypes::kTypes) {
    for (const int64_t width : {1, 24, 37, 200}) {
      for (const int64_t offset : {0, 1}) {
        INFO(name_of(type) << ", " << width << " columns from " << offset);
        const Array logits(DType::f32, {kRows, rule.experts},
                           random_values(kRows * rule.experts, 1));
        const Array x(type, {kRows, width}, random_values(kRows * width, 2));
        const Array addend(DType::f32, {kRows, width}, random_values(kRows * width, 3));
        const auto run = [&](Side& side) {
          const Routed routed = route(side, rule, side.put(logits), {});
          const View from = side.put(x, offset);
          const View rows = side.space(type, {routed.sources.count(), width}, offset);
          ops::send_rows(side.stream(), from, routed.sources, routed.probabilities, true, rows);
          const View products = side.space(DType::f32, routed.slots.shape);
          ops::dot_rows(side.stream(), from, rows, routed.slots, products);
          const View overwritten = side.space(type, {kRows, width}, offset);
          ops::return_rows(side.stream(), {.x = rows,
                                           .slots = routed.slots,
                                           .weights = routed.probabilities,
                                           .y = overwritten});
          const View added = side.put(x, offset);
          ops::return_rows(side.stream(), {.x = rows,
                                           .slots = routed.slots,
                                           .weights = {},
                                           .addend = side.put(addend, offset),
                                           .adds = true,
                                           .y = added});
          return std::array{side.get(rows), side.get(products), side.get(overwritten),
                            side.get(added)};
        };
        const auto cuda = on_cuda(run);
        const auto cpu = on_cpu(run);
        for (size_t i = 0; i < cpu.size(); ++i) {
          INFO("result " << i);
          CHECK(same_values(cuda[i], cpu[i]));
        }
      }
    }
  }
}

TEST_CASE("biases of routers are exact", "[cuda][routing]") {
  constexpr int64_t kExperts = 300;
  Array loads(DType::i64, {3, 2, kExperts + 1});
  for (int64_t i = 0; i < loads.count(); ++i) {
    loads.as<int64_t>()[i] = i * 7919 % 11;
  }
  const auto run = [&](Side& side) {
    const View bias = side.put(Array(DType::f32, {kExperts - 5}, random_values(kExperts - 5, 1)));
    ops::update_router_bias(
        side.stream(),
        {.loads = side.put(loads), .layer = 1, .rate = 0.001F, .bias = bias, .first = 5});
    return side.get(bias);
  };
  CHECK(same_values(on_cuda(run), on_cpu(run)));
}

}  // namespace
}  // namespace fp8train::test
