#include "ops/loss/cross_entropy.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

void cross_entropy(Stream stream, const CrossEntropy& call) {
  const int64_t rows = call.logits.shape.rows();
  const int64_t columns = call.logits.shape.back();
  check(is_float_type(call.logits.dtype), "cross_entropy: logits must be fp32, bf16 or fp16");
  check(holds(call.targets, DType::i32, rows), "cross_entropy: targets must be int32 [rows]");
  check(holds(call.losses, DType::f32, rows), "cross_entropy: losses must be fp32 [rows]");
  check(call.z_losses.empty() || holds(call.z_losses, DType::f32, rows),
        "cross_entropy: z_losses must be fp32 [rows]");
  check(call.vocabulary >= 0 && call.vocabulary <= columns,
        "cross_entropy: vocabulary exceeds the columns of the logits");
  CrossEntropy resolved = call;
  resolved.vocabulary = call.vocabulary == 0 ? columns : call.vocabulary;
  dispatch<&OpTable::cross_entropy>(stream, resolved);
}

void accumulate_loss(Stream stream, ConstView losses, ConstView targets, double* accumulator,
                     int64_t* count) {
  check(holds(losses, DType::f32, losses.count()), "accumulate_loss: losses must be fp32");
  check(holds(targets, DType::i32, losses.count()),
        "accumulate_loss: targets must be int32, one per loss");
  check(accumulator != nullptr, "accumulate_loss: missing accumulator");
  dispatch<&OpTable::accumulate_loss>(stream, losses, targets, accumulator, count);
}

}  // namespace fp8train::ops
