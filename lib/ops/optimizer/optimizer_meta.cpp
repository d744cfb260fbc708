// Gradient norms, optimizers, and tensors as they are stored.

#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

void sum_of_squares(Stream stream, ConstView x, double* /*accumulator*/, View /*scratch*/,
                    DType /*read_as*/) {
  count(stream, bytes_of(x) + 2 * sizeof(double), "sum_of_squares", x.count(),
        x.count() > (int64_t{1} << 24) ? 3 : 2);
}

void prepare_step(Stream stream, StepControl* /*control*/, float /*max_norm*/,
                  const LossScaling& /*scaling*/) {
  count(stream, 2 * sizeof(StepControl));
}

/// Whose scale follows from an amax that a pass over the new values finds.
bool scaled_by_tensor(const StoredTensor& tensor) {
  return tensor.format.is_scaled() && tensor.format.granularity == Granularity::tensor;
}

void store(Stream stream, const Store& call) {
  const bool by_tensor = scaled_by_tensor(call.to);
  count(stream, {.bytes = (by_tensor ? 2 : 1) *
                              (bytes_of(call.x) + (call.add ? stored_bytes(call.to) : 0.0)) +
                          stored_bytes(call.to),
                 .launches = by_tensor ? 3 : 1});
}

void read_stored(Stream stream, const StoredTensor& x, View y) {
  count(stream, stored_bytes(x) + bytes_of(y));
}

void update_auto_scale(Stream stream, ConstView codes, AutoScale* /*automatic*/,
                       const int32_t* /*skip*/) {
  count(stream, {.bytes = bytes_of(codes) + 2 * sizeof(AutoScale), .launches = 2});
}

void update_auto_scales(Stream stream, const AutoScale* /*of_ranks*/, int64_t ranks,
                        AutoScale* /*scales*/, int64_t scales, const int32_t* /*skip*/) {
  count(stream, static_cast<double>((ranks + 2) * scales) * sizeof(AutoScale));
}

void compress(Stream stream, ConstView x, const CompressedView& out) {
  count(stream, bytes_of(x) + bytes_of(out.codes) + bytes_of(out.scale_inv));
}

void decompress(Stream stream, const CompressedView& x, View y) {
  count(stream, bytes_of(x.codes) + bytes_of(x.scale_inv) + bytes_of(y));
}

/// What a pass for the amax of a new tensor reads.
double amax_pass_bytes(const AdamW& call) {
  return stored_bytes(call.weight) + stored_bytes(call.gradient) + stored_bytes(call.moment1) +
         stored_bytes(call.moment2);
}

/// One kernel, with the cast; scales for whole tensors take a pass for the amax and a kernel that
/// writes them, and a weight of few bits is cast by a kernel of its own.
void adamw(Stream stream, const AdamW& call, const StepControl* /*control*/) {
  const bool plain =
      call.weight.format.dtype == DType::f32 && call.gradient.format.dtype == DType::f32;
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

}  // namespace

void fill_optimizer(OpTable& table) {
  table.sum_of_squares = sum_of_squares;
  table.prepare_step = prepare_step;
  table.store = store;
  table.read_stored = read_stored;
  table.update_auto_scale = update_auto_scale;
  table.update_auto_scales = update_auto_scales;
  table.compress = compress;
  table.decompress = decompress;
  table.adamw = adamw;
  table.adamw_amax = adamw_amax;
  table.sgd = sgd;
}

}  // namespace fp8train::ops::meta
