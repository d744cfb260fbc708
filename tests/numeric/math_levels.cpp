#include "numeric/math_levels.h"

#include "numeric/math.h"

namespace fp8train::FP8TRAIN_ISA_NS {
namespace {

struct Exp {
  FP8TRAIN_HD float operator()(float x) const { return exp_f32(x); }
};
struct Log {
  FP8TRAIN_HD float operator()(float x) const { return log_f32(x); }
};
struct Exp2 {
  FP8TRAIN_HD float operator()(float x) const { return exp2_f32(x); }
};
struct Log2 {
  FP8TRAIN_HD float operator()(float x) const { return log2_f32(x); }
};
struct Sigmoid {
  FP8TRAIN_HD float operator()(float x) const { return sigmoid_f32(x); }
};
struct Silu {
  FP8TRAIN_HD float operator()(float x) const { return silu(x); }
};
struct SiluDerivative {
  FP8TRAIN_HD float operator()(float x) const { return silu_derivative(x); }
};
struct Gelu {
  FP8TRAIN_HD float operator()(float x) const { return gelu_tanh(x); }
};
struct GeluDerivative {
  FP8TRAIN_HD float operator()(float x) const { return gelu_tanh_derivative(x); }
};

template <typename Function>
void apply(const float* __restrict x, float* __restrict y, size_t count) {
  const Function function;
  for (size_t i = 0; i < count; ++i) {
    y[i] = function(x[i]);
  }
}

constexpr MathKernels kTable = {{apply<Exp>, apply<Log>, apply<Sigmoid>, apply<Silu>,
                                 apply<SiluDerivative>, apply<Gelu>, apply<GeluDerivative>,
                                 apply<Exp2>, apply<Log2>}};

}  // namespace

const MathKernels& math_kernels() {
  return kTable;
}

}  // namespace fp8train::FP8TRAIN_ISA_NS
