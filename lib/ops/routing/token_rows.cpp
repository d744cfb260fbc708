#include "ops/routing/token_rows.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

void assign_slots(Stream stream, const SlotAssignment& call) {
  check(call.chosen.dtype == DType::i32 && holds(call.slots, DType::i32, call.chosen.count()) &&
            call.sources.dtype == DType::i32,
        "assign_slots: slots must be int32 [rows, k] and sources int32");
  check(call.begins.empty() ? call.sources.count() == call.experts * call.capacity
                            : holds(call.begins, DType::i32, call.experts + 1),
        "assign_slots: sources must be [E * capacity], or begins int32 [E + 1]");
  dispatch<&OpTable::assign_slots>(stream, call);
}

void send_rows(Stream stream, ConstView x, ConstView sources, ConstView weights, bool weighted,
               View y) {
  check(is_float_type(x.dtype) && x.dtype == y.dtype && x.shape.back() == y.shape.back(),
        "send_rows: x and y must be rows of one width and type");
  check(holds(sources, DType::i32, y.shape.rows()) && weights.shape.rows() == x.shape.rows() &&
            (!weighted || holds(weights, DType::f32, weights.count())),
        "send_rows: sources must be int32 [slots], and weights fp32 [rows, k]");
  dispatch<&OpTable::send_rows>(stream, x, sources, weights, weighted, y);
}

void return_rows(Stream stream, const ReturnedRows& call) {
  check(is_float_type(call.x.dtype) && call.x.dtype == call.y.dtype &&
            call.x.shape.back() == call.y.shape.back(),
        "return_rows: x and y must be rows of one width and type");
  check(call.slots.dtype == DType::i32 && call.slots.shape.rows() == call.y.shape.rows() &&
            (call.weights.empty() || holds(call.weights, DType::f32, call.slots.count())) &&
            (call.addend.empty() || holds(call.addend, DType::f32, call.y.count())),
        "return_rows: slots must be int32 [rows, k], weights fp32, and addend fp32 [rows, C]");
  dispatch<&OpTable::return_rows>(stream, call);
}

void dot_rows(Stream stream, ConstView a, ConstView b, ConstView slots, View products) {
  check(is_float_type(a.dtype) && a.dtype == b.dtype && a.shape.back() == b.shape.back(),
        "dot_rows: a and b must be rows of one width and type");
  check(slots.dtype == DType::i32 && slots.shape.rows() == a.shape.rows() &&
            holds(products, DType::f32, slots.count()),
        "dot_rows: slots must be int32 [rows, k] and products fp32 [rows, k]");
  dispatch<&OpTable::dot_rows>(stream, a, b, slots, products);
}

}  // namespace fp8train::ops
