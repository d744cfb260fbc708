#pragma once
// The gradients of parameters that all ranks of the tensor axis have, of which each makes a part
// (Sharding::partial): those of norms and of biases behind a sum over ranks add over this rank's
// rows, those of the norms of heads over its heads. Ranks add the parts in each micro-batch, so
// that all have the whole gradient from then on.

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "nn/context.h"
#include "nn/parameter.h"
#include "ops/exchange/wire.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {

/// The rows, or heads, of which one partial sum is made.
struct SumRange {
  int64_t first = 0, count = 0;
};

/// Memory for the partial sums of the gradients of `Count` parameters that one operation makes; a
/// parameter may be null. It is in the scratch arena, valid as long as the caller's scope.
template <size_t Count>
class PartialGradients {
 public:
  using Views = std::array<View, Count>;

  PartialGradients(const StepContext& context,
                   const std::array<const Parameter*, Count>& parameters)
      : context_(context), parameters_(parameters) {
    for (const Parameter* parameter : parameters) {
      width_ += parameter == nullptr ? 0 : parameter->shape.count();
    }
  }

  /// Calls make(SumRange, Views, bool overwrites), which adds to the gradients or overwrites them,
  /// for ranges of `count` rows or heads that are all of them, and adds what it has made to the
  /// gradients of the parameters.
  template <typename Make>
  void add(int64_t count, const Make& make) const {
    if (!context_.divides_sums()) {
      Views whole;
      for (size_t i = 0; i < Count; ++i) {
        whole[i] = parameters_[i] == nullptr ? View{}
                                             : gradient_memory(*context_.scratch, *parameters_[i]);
      }
      return make(SumRange{0, count}, whole, overwrites(*parameters_.front()));
    }
    const int64_t parts = context_.tensor_parts;
    check(count % parts == 0, "parts of a sum are equal");
    const View sums = allocate(*context_.scratch, DType::f32, {parts, width_});
    for (int64_t part = 0; part < parts; ++part) {
      make(SumRange{part * (count / parts), count / parts}, views(rows_of(sums, part, 1)), true);
    }
    add_sums(sums);
  }

 private:
  bool overwrites(const Parameter& parameter) const {
    return context_.overwrites_gradients && parameter.overwritten;
  }
  /// The gradients in one part.
  Views views(const View& part) const {
    Views views;
    int64_t begin = 0;
    for (size_t i = 0; i < Count; ++i) {
      if (parameters_[i] != nullptr) {
        const Shape& shape = parameters_[i]->shape;
        views[i] = {part.as<float>() + begin, DType::f32, shape};
        begin += shape.count();
      }
    }
    return views;
  }
  /// Adds the rows of fp32 [parts, n], and those of ranks, all in pairs.
  void add_sums(const View& parts) const {
    View sum = reshaped(rows_of(parts, 0, 1), {parts.shape.back()});
    if (parts.shape.rows() > 1) {
      sum = allocate(*context_.scratch, DType::f32, sum.shape);
      ops::combine_ranks(context_.stream, parts, ops::Combine::pairs, sum);
    }
    if (context_.tensor_ranks != nullptr) {
      context_.tensor_ranks->sum(context_, sum);
    }
    const Views sums = views(sum);
    for (size_t i = 0; i < Count; ++i) {
      if (parameters_[i] == nullptr || !parameters_[i]->trained) {
        continue;
      }
      const View& gradient = parameters_[i]->gradient;
      if (overwrites(*parameters_[i])) {
        ops::cast(context_.stream, sums[i], gradient);
      } else {
        ops::add(context_.stream, gradient, sums[i], gradient);
      }
    }
  }

  const StepContext& context_;
  std::array<const Parameter*, Count> parameters_;
  int64_t width_ = 0;
};

}  // namespace fp8train
