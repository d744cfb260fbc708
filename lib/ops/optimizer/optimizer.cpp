#include "ops/optimizer/optimizer.h"

#include "ops/cast/quantize_checks.h"
#include "ops/dispatch/op_table.h"
#include "ops/optimizer/optimizer_math.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

bool is_copy_of(const ConstView& copy, int64_t count) {
  return copy.empty() || holds(copy, DType::bf16, count) || holds(copy, DType::f16, count);
}

bool may_be_read_as(DType dtype, DType read_as) {
  return read_as == DType::f32 || (dtype == DType::f32 && read_as == DType::bf16);
}

void check_adamw(const AdamW& call, const StepControl* control) {
  const int64_t count = call.weight.count();
  check(control != nullptr, "adamw: no control block");
  for (const Encoded* tensor : {&call.weight, &call.gradient, &call.moment1, &call.moment2}) {
    check_stored(*tensor, count);
  }
  check(is_copy_of(call.copy, count), "adamw: the copy must be bf16 or fp16 of the same count");
  check(may_be_read_as(call.gradient.format.dtype, call.gradient_read_as),
        "adamw: only an fp32 gradient is read as another type, bf16");
  check(call.cast.empty() || call.weight.format.dtype == DType::f32,
        "adamw: only an fp32 weight is cast by the update; cast the others after it");
  if (!call.cast.empty()) {
    check_sink(call.weight.codes, call.cast);
  }
}

}  // namespace

void sum_of_squares(Stream stream, ConstView x, double* accumulator, View scratch, DType read_as) {
  check(is_float_type(x.dtype), "sum_of_squares: x must be fp32, bf16 or fp16");
  check(accumulator != nullptr, "sum_of_squares: no accumulator");
  check(scratch.bytes() >= static_cast<size_t>(squares_partial_sums(x.count())) * sizeof(double),
        "sum_of_squares: scratch must hold squares_partial_sums(count) doubles");
  check(may_be_read_as(x.dtype, read_as),
        "sum_of_squares: only fp32 is read as another type, bf16");
  dispatch<&OpTable::sum_of_squares>(stream, x, accumulator, scratch, read_as);
}

void prepare_step(Stream stream, StepControl* control, float max_norm, const LossScaling& scaling) {
  check(control != nullptr, "prepare_step: no control block");
  dispatch<&OpTable::prepare_step>(stream, control, max_norm, scaling);
}

void adamw_amax(Stream stream, const AdamW& call, const StepControl* control) {
  check_adamw(call, control);
  dispatch<&OpTable::adamw_amax>(stream, call, control);
}

void adamw(Stream stream, const AdamW& call, const StepControl* control) {
  check_adamw(call, control);
  dispatch<&OpTable::adamw>(stream, call, control);
}

void sgd(Stream stream, const Sgd& call, const StepControl* control) {
  const int64_t count = call.weight.count();
  check(control != nullptr, "sgd: no control block");
  check(holds(call.weight, DType::f32, count) && holds(call.gradient, DType::f32, count),
        "sgd: weight and gradient must be fp32 of one count");
  check(call.momentum.empty() || holds(call.momentum, DType::f32, count),
        "sgd: momentum must be fp32 of the same count");
  check(is_copy_of(call.copy, count), "sgd: the copy must be bf16 or fp16 of the same count");
  dispatch<&OpTable::sgd>(stream, call, control);
}

}  // namespace fp8train::ops
