// Compiled once per CPU level. Loops over the definitions of numeric/convert.h; `ivdep` because
// an output may be one of the inputs, element on element.

#include <cstring>

#include "ops/dispatch/cpu_operations.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

template <typename A, typename B, typename Y>
FP8TRAIN_HD void add_arrays(const A* a, const B* b, Y* y, int64_t count) {
  for_each_chunk(count, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      store_from_float(y + i, load_as_float(a + i) + load_as_float(b + i));
    }
  });
}

}  // namespace

void cast(Stream /*stream*/, ConstView x, View y) {
  with_float_type(x.dtype, [&](auto x_tag) {
    with_float_type(y.dtype, [&](auto y_tag) {
      const auto* from = x.as<typename decltype(x_tag)::Type>();
      auto* to = y.as<typename decltype(y_tag)::Type>();
      for_each_chunk(y.count(), [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) {
          store_from_float(to + i, load_as_float(from + i));
        }
      });
    });
  });
}

void add(Stream /*stream*/, ConstView a, ConstView b, View y) {
  with_float_type(a.dtype, [&](auto a_tag) {
    with_float_type(b.dtype, [&](auto b_tag) {
      with_float_type(y.dtype, [&](auto y_tag) {
        add_arrays(a.as<typename decltype(a_tag)::Type>(), b.as<typename decltype(b_tag)::Type>(),
                   y.as<typename decltype(y_tag)::Type>(), y.count());
      });
    });
  });
}

void add_bias(Stream /*stream*/, View y, ConstView bias) {
  const int64_t columns = y.shape.back();
  const int64_t rows = y.shape.rows();
  const float* bias_data = bias.as<float>();
  with_float_type(y.dtype, [&](auto tag) {
    auto* data = y.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      auto* y_row = data + row * columns;
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) {
        store_from_float(y_row + c, load_as_float(y_row + c) + bias_data[c]);
      }
    }
  });
}

void copy_columns(Stream /*stream*/, ConstView x, int64_t first, View y) {
  const size_t from = bytes_of_rows(x.dtype, 1, first);
  const size_t stride = bytes_of_rows(x.dtype, 1, x.shape.back());
  const size_t width = bytes_of_rows(y.dtype, 1, y.shape.back());
  const int64_t rows = y.shape.rows();
  const bool shares = rows * static_cast<int64_t>(width) >= kParallelElements;
#pragma omp parallel for schedule(static) if (shares)
  for (int64_t row = 0; row < rows; ++row) {
    const auto r = static_cast<size_t>(row);
    std::memcpy(y.as<char>() + r * width, x.as<char>() + r * stride + from, width);
  }
}

void add_columns(Stream /*stream*/, const AddColumns& call) {
  const int64_t rows = call.y.shape.rows();
  const int64_t columns = call.columns;
  with_float_type(call.x.dtype, [&](auto x_tag) {
    with_float_type(call.y.dtype, [&](auto y_tag) {
      const auto* x = call.x.as<typename decltype(x_tag)::Type>() + call.x_first;
      auto* y = call.y.as<typename decltype(y_tag)::Type>() + call.y_first;
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
      for (int64_t row = 0; row < rows; ++row) {
        const auto* x_row = x + row * call.x.shape.back();
        auto* y_row = y + row * call.y.shape.back();
#pragma GCC ivdep
        for (int64_t c = 0; c < columns; ++c) {
          const float before = call.overwrites ? 0.0F : load_as_float(y_row + c);
          store_from_float(y_row + c, before + call.factor * load_as_float(x_row + c));
        }
      }
    });
  });
}

void bias_backward(Stream /*stream*/, ConstView dy, View grad, View scratch, bool overwrite) {
  const int64_t columns = grad.count();
  const int64_t rows = dy.count() / columns;
  const int64_t chunks = bias_partial_rows(rows);
  float* partial = scratch.as<float>();
  with_float_type(dy.dtype, [&](auto tag) {
    const auto* data = dy.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      float* sum = partial + chunk * columns;
      for (int64_t c = 0; c < columns; ++c) {
        sum[c] = 0.0F;
      }
      for (int64_t row = chunk * kBiasChunkRows; row < minimum(rows, (chunk + 1) * kBiasChunkRows);
           ++row) {
        const auto* dy_row = data + row * columns;
#pragma GCC ivdep
        for (int64_t c = 0; c < columns; ++c) {
          sum[c] += load_as_float(dy_row + c);
        }
      }
    }
  });
  float* total = grad.as<float>();
  for (int64_t c = 0; overwrite && c < columns; ++c) {
    total[c] = 0.0F;
  }
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* sum = partial + chunk * columns;
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      total[c] += sum[c];
    }
  }
}

void fill(Stream /*stream*/, View y, float value) {
  float* data = y.as<float>();
  for_each_chunk(y.count(), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      data[i] = value;
    }
  });
}

void scale_by(Stream /*stream*/, View y, const float* factor) {
  float* data = y.as<float>();
  const float multiplier = *factor;
  for_each_chunk(y.count(), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      data[i] *= multiplier;
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
