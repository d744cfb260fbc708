#include "ops/routing/router.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

void check_rule(const RouterRule& rule, ConstView logits, ConstView chosen) {
  check(rule.per_token > 0 && rule.per_token <= rule.experts, "a router chooses 1 to E experts");
  check(rule.groups > 0 && rule.experts % rule.groups == 0 && rule.groups_per_token > 0 &&
            rule.groups_per_token <= rule.groups &&
            rule.per_token <= rule.groups_per_token * (rule.experts / rule.groups),
        "a router chooses among groups that have enough experts");
  const int64_t rows = logits.shape.rows();
  check(holds(logits, DType::f32, rows * rule.experts) && logits.shape.back() == rule.experts,
        "a router's logits must be fp32 [rows, E]");
  check(holds(chosen, DType::i32, rows * rule.per_token), "chosen must be int32 [rows, k]");
}

}  // namespace

void route(Stream stream, const Route& call) {
  check_rule(call.rule, call.logits, call.chosen);
  check(call.bias.empty() || holds(call.bias, DType::f32, call.rule.experts),
        "route: bias must be fp32 [E]");
  check(has_space(call.keys, DType::f32, call.logits.count()) &&
            holds(call.probabilities, DType::f32, call.chosen.count()),
        "route: keys must be fp32 [rows, E] and probabilities fp32 [rows, k]");
  dispatch<&OpTable::route>(stream, call);
}

void count_choices(Stream stream, ConstView chosen, View counts) {
  check(chosen.dtype == DType::i32 && counts.dtype == DType::f32 &&
            chosen.shape.rows() % counts.shape.rows() == 0,
        "count_choices: int32 of sequences of one length, and fp32 counts expected");
  dispatch<&OpTable::count_choices>(stream, chosen, counts);
}

void add_loads(Stream stream, ConstView counts, int64_t capacity, View loads) {
  check(counts.dtype == DType::f32 && holds(loads, DType::i64, counts.shape.back() + 1),
        "add_loads: loads must be int64 [E + 1] for counts [sequences, E]");
  dispatch<&OpTable::add_loads>(stream, counts, capacity, loads);
}

void route_backward(Stream stream, const RouteBackward& call) {
  check_rule(call.rule, call.logits, call.chosen);
  check(holds(call.gradients, DType::f32, call.chosen.count()) &&
            holds(call.d_logits, DType::f32, call.logits.count()),
        "route_backward: gradients must be fp32 [rows, k] and d_logits fp32 [rows, E]");
  check(call.counts.empty() ||
            (call.counts.dtype == DType::f32 && call.counts.shape.back() == call.rule.experts &&
             call.logits.shape.rows() % call.counts.shape.rows() == 0),
        "route_backward: counts must be fp32 [sequences, E]");
  check(call.losses.empty() || holds(call.losses, DType::f32, 2 * call.logits.shape.rows()),
        "route_backward: losses must be fp32 [2, rows]");
  dispatch<&OpTable::route_backward>(stream, call);
}

void update_router_bias(Stream stream, const RouterBiasUpdate& call) {
  check(call.loads.dtype == DType::i64 && call.loads.shape.rank() == 3 &&
            call.layer < call.loads.shape[1] && call.bias.dtype == DType::f32 &&
            call.first + call.bias.count() < call.loads.shape.back(),
        "update_router_bias: bias must be fp32, for some experts of int64 [ranks, layers, E + 1]");
  dispatch<&OpTable::update_router_bias>(stream, call);
}

}  // namespace fp8train::ops
