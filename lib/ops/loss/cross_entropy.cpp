#include "ops/loss/cross_entropy.h"

#include "ops/dispatch/op_table.h"
#include "ops/loss/cross_entropy_math.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

namespace {

void check_logits(const ConstView& logits, const ConstView& targets) {
  check(is_float_type(logits.dtype), "cross_entropy: logits must be fp32, bf16 or fp16");
  check(holds(targets, DType::i32, logits.shape.rows()),
        "cross_entropy: targets must be int32 [rows]");
}

/// Throws InternalError unless they are fp32 [parts, rows, 3].
void check_statistics(const ConstView& statistics, int64_t rows) {
  const int64_t parts = statistics.count() / (rows * kStatistics);
  check(
      parts > 0 && parts <= kMaxPaired && holds(statistics, DType::f32, parts * rows * kStatistics),
      "cross_entropy: statistics must be fp32 [parts, rows, 3], of at most kMaxPaired parts");
}

}  // namespace

void vocabulary_statistics(Stream stream, const VocabularyStatistics& call) {
  const int64_t rows = call.logits.shape.rows();
  check_logits(call.logits, call.targets);
  check_statistics(call.statistics, rows);
  check(call.logits.count() * kStatistics % call.statistics.count() == 0,
        "vocabulary_statistics: parts must have equally many columns");
  check(call.vocabulary > 0 && call.first_column >= 0,
        "vocabulary_statistics: the vocabulary of all parts is needed");
  dispatch<&OpTable::vocabulary_statistics>(stream, call);
}

void cross_entropy(Stream stream, const CrossEntropy& call) {
  const int64_t rows = call.logits.shape.rows();
  const int64_t columns = call.logits.shape.back();
  check_logits(call.logits, call.targets);
  check(holds(call.losses, DType::f32, rows), "cross_entropy: losses must be fp32 [rows]");
  check(call.z_losses.empty() || holds(call.z_losses, DType::f32, rows),
        "cross_entropy: z_losses must be fp32 [rows]");
  if (!call.statistics.empty()) {
    check_statistics(call.statistics, rows);
    check(call.vocabulary > 0 && call.first_column >= 0,
          "cross_entropy: the vocabulary of all parts is needed");
    return dispatch<&OpTable::cross_entropy>(stream, call);
  }
  check(call.vocabulary >= 0 && call.vocabulary <= columns && call.first_column == 0,
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
