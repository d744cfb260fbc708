#pragma once
// The input of an operation that is not a GEMM, as backward reads it: itself, where it stays alive,
// or codes of it.

#include "nn/context.h"
#include "ops/storage.h"
#include "tensor/tensor.h"

namespace fp8train {

class SavedInput {
 public:
  /// For backward: refers to x, or keeps codes of it in context.saved when `compress`. In a pass
  /// that is not training nothing is kept.
  static SavedInput keep(const StepContext& context, ConstView x, bool compress) {
    SavedInput saved;
    saved.x_ = x;
    if (compress && context.training) {
      const int64_t groups = (x.count() + ops::kCompressedGroup - 1) / ops::kCompressedGroup;
      saved.codes_ = {allocate(*context.saved, DType::e4m3, x.shape),
                      allocate(*context.saved, DType::bf16, {groups})};
      ops::compress(context.stream, x, saved.codes_);
      saved.x_.data = nullptr;
    }
    return saved;
  }

  /// x, or what its codes say in context.scratch.
  ConstView read(const StepContext& context) const {
    if (codes_.codes.empty()) {
      return x_;
    }
    const View x = allocate(*context.scratch, x_.dtype, x_.shape);
    ops::decompress(context.stream, codes_, x);
    return x;
  }

 private:
  ConstView x_;
  ops::CompressedView codes_;
};

}  // namespace fp8train
