#include "nn/partial_gradient.h"

#include "ops/exchange/wire.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {

View sum_of_ranks(const StepContext& context, const View& parts) {
  View sum = reshaped(rows_of(parts, 0, 1), {parts.shape.back()});
  if (parts.shape.rows() > 1) {
    sum = allocate(*context.scratch, DType::f32, sum.shape);
    ops::combine_ranks(context.stream, parts, ops::Combine::pairs, sum);
  }
  if (context.tensor_ranks != nullptr) {
    context.tensor_ranks->sum(context, sum);
  }
  return sum;
}

void add_to_gradient(const StepContext& context, const Parameter& parameter, const View& sum,
                     bool overwrites) {
  if (overwrites) {
    ops::cast(context.stream, sum, parameter.gradient);
  } else {
    ops::add(context.stream, parameter.gradient, sum, parameter.gradient);
  }
}

}  // namespace fp8train
