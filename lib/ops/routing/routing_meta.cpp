#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {

void route(Stream stream, const Route& call) {
  const double passes = static_cast<double>(call.rule.per_token) + 3;
  count(stream,
        passes * bytes_of(call.logits) + bytes_of(call.chosen) + bytes_of(call.probabilities));
}

void count_choices(Stream stream, ConstView chosen, View counts) {
  count(stream, bytes_of(chosen) + bytes_of(counts));
}

void add_loads(Stream stream, ConstView counts, int64_t /*capacity*/, View loads) {
  count(stream, bytes_of(counts) + 2 * bytes_of(loads));
}

void route_backward(Stream stream, const RouteBackward& call) {
  count(stream, 2 * bytes_of(call.logits) + bytes_of(call.chosen) + bytes_of(call.gradients) +
                    3 * bytes_of(call.d_logits) +
                    (call.losses.empty() ? 0.0 : bytes_of(call.logits) + bytes_of(call.losses)));
}

void update_router_bias(Stream stream, const RouterBiasUpdate& call) {
  count(stream, bytes_of(call.loads) + 2 * bytes_of(call.bias));
}

void assign_slots(Stream stream, const SlotAssignment& call) {
  count(stream, static_cast<double>(call.experts) * bytes_of(call.chosen) + bytes_of(call.slots) +
                    bytes_of(call.sources));
}

void send_rows(Stream stream, ConstView /*x*/, ConstView sources, ConstView weights,
               bool /*weighted*/, View y) {
  count(stream, 2 * bytes_of(y) + bytes_of(sources) + bytes_of(weights));
}

void return_rows(Stream stream, const ReturnedRows& call) {
  const double per_token = static_cast<double>(call.slots.shape.back());
  count(stream, (per_token + (call.adds ? 2 : 1)) * bytes_of(call.y) + bytes_of(call.slots) +
                    bytes_of(call.weights) + bytes_of(call.addend));
}

void dot_rows(Stream stream, ConstView a, ConstView /*b*/, ConstView slots, View products) {
  const double per_token = static_cast<double>(slots.shape.back());
  count(stream, (per_token + 1) * bytes_of(a) + bytes_of(slots) + bytes_of(products));
}

}  // namespace fp8train::ops::meta
