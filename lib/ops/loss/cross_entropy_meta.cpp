#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {

void vocabulary_statistics(Stream stream, const VocabularyStatistics& call) {
  count(stream, bytes_of(call.logits) + bytes_of(call.targets) + bytes_of(call.statistics),
        "cross_entropy", call.logits.count() / 2);  // one of the kernel's two passes
}

void cross_entropy(Stream stream, const CrossEntropy& call) {
  if (!call.statistics.empty()) {
    return count(stream,
                 bytes_of(call.logits) * (call.write_gradient ? 2 : 0) + bytes_of(call.statistics) +
                     bytes_of(call.targets) + bytes_of(call.losses) + bytes_of(call.z_losses),
                 call.write_gradient ? "cross_entropy" : nullptr, call.logits.count() / 2);
  }
  // The gradient takes a second pass over the logits: rows in flight are more than a cache holds.
  count(stream,
        bytes_of(call.logits) * (call.write_gradient ? 3 : 1) + bytes_of(call.targets) +
            bytes_of(call.losses) + bytes_of(call.z_losses),
        call.write_gradient ? "cross_entropy" : nullptr, call.logits.count());
}

void accumulate_loss(Stream stream, ConstView losses, ConstView targets, double* /*accumulator*/,
                     int64_t* /*count*/) {
  count(stream, bytes_of(losses) + bytes_of(targets) + 4 * sizeof(double));
}

}  // namespace fp8train::ops::meta
