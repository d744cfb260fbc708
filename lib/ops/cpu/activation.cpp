// Compiled once per x86-64 level. The formulas are those of numeric/math.h: the same bits at every
// level.

#include "numeric/math.h"
#include "ops/cpu/cpu_table.h"
#include "ops/cpu/kernel_support.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

void swiglu_forward(Stream /*stream*/, ConstView gate_up, View y) {
  const int64_t width = y.shape.back();
  const int64_t rows = y.shape.rows();
  with_float_type(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = gate_up.as<T>();
    T* to = y.as<T>();
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      const T* __restrict gate = from + row * 2 * width;
      const T* __restrict up = gate + width;
      T* __restrict out = to + row * width;
      for (int64_t i = 0; i < width; ++i) {
        store_from_float(out + i, silu(load_as_float(gate + i)) * load_as_float(up + i));
      }
    }
  });
}

void swiglu_backward(Stream /*stream*/, ConstView dy, ConstView gate_up, View d_gate_up) {
  const int64_t width = dy.shape.back();
  const int64_t rows = dy.shape.rows();
  with_float_type(dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* gradient = dy.as<T>();
    const T* from = gate_up.as<T>();
    T* to = d_gate_up.as<T>();
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      const T* __restrict d = gradient + row * width;
      const T* __restrict gate = from + row * 2 * width;
      const T* __restrict up = gate + width;
      T* __restrict d_gate = to + row * 2 * width;
      T* __restrict d_up = d_gate + width;
      for (int64_t i = 0; i < width; ++i) {
        const float g = load_as_float(gate + i);
        const float incoming = load_as_float(d + i);
        store_from_float(d_gate + i, incoming * load_as_float(up + i) * silu_derivative(g));
        store_from_float(d_up + i, incoming * silu(g));
      }
    }
  });
}

void gelu_forward(Stream /*stream*/, ConstView x, View y) {
  with_float_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = x.as<T>();
    T* to = y.as<T>();
    for_each_chunk(x.count(), [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        store_from_float(to + i, gelu_tanh(load_as_float(from + i)));
      }
    });
  });
}

void gelu_backward(Stream /*stream*/, ConstView dy, ConstView x, View dx) {
  with_float_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* gradient = dy.as<T>();
    const T* from = x.as<T>();
    T* to = dx.as<T>();
    for_each_chunk(x.count(), [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        const float value = gelu_tanh_derivative(load_as_float(from + i));
        store_from_float(to + i, load_as_float(gradient + i) * value);
      }
    });
  });
}

}  // namespace

void fill_activation(OpTable& table) {
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
