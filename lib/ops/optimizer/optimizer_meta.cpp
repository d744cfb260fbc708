// Gradient norms and optimizers.

#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

/// The bytes that a pass for the amax of a new tensor reads.
OpBytes amax_pass_bytes(const AdamW& call) {
  return stored_bytes(call.weight) + stored_bytes(call.gradient) + stored_bytes(call.moment1) +
         stored_bytes(call.moment2);
}

}  // namespace

void sum_of_squares(Stream stream, ConstView x, double* /*accumulator*/, View /*scratch*/,
                    DType /*read_as*/) {
  count(stream, bytes_of(x) + 2 * sizeof(double), "sum_of_squares", x.count(),
        x.count() > (int64_t{1} << 24) ? 3 : 2);
}

void prepare_step(Stream stream, StepControl* /*control*/, float /*max_norm*/,
                  const LossScaling& /*scaling*/) {
  count(stream, 2 * sizeof(StepControl));
}

/// One kernel, with the cast; scales for whole tensors take a pass for the amax and a kernel that
/// writes them, and a weight of few bits is cast by a kernel of its own.
void adamw(Stream stream, const AdamW& call, const StepControl* /*control*/) {
  const DType gradient = call.gradient.format.dtype;
  const bool plain =
      call.weight.format.dtype == DType::f32 && (gradient == DType::f32 || gradient == DType::bf16);
  const bool scales = scaled_by_tensor(call.weight) || scaled_by_tensor(call.moment1) ||
                      scaled_by_tensor(call.moment2);
  OpWork work = {.bytes = 2 * stored_bytes(call.weight) + stored_bytes(call.gradient) +
                          2 * stored_bytes(call.moment1) + 2 * stored_bytes(call.moment2) +
                          bytes_of(call.copy) + bytes_of(call.cast),
                 .kernel = !plain              ? nullptr
                           : call.cast.empty() ? "adamw"
                                               : "adamw cast",
                 .elements = static_cast<double>(call.weight.count())};
  if (scales) {
    work.launches += call.amax_known ? 1 : 2;
    work.bytes += call.amax_known ? 0.0 : amax_pass_bytes(call);
  }
  if (!plain && !call.cast.empty()) {
    work.launches += 1;
    work.bytes += stored_bytes(call.weight);
  }
  count(stream, work);
}

void adamw_amax(Stream stream, const AdamW& call, const StepControl* /*control*/) {
  count(stream, amax_pass_bytes(call));
}

void sgd(Stream stream, const Sgd& call, const StepControl* /*control*/) {
  count(stream, 2 * bytes_of(call.weight) + bytes_of(call.gradient) + 2 * bytes_of(call.momentum) +
                    bytes_of(call.copy));
}

}  // namespace fp8train::ops::meta
