// Element-wise kernels and the bias gradient. The same arithmetic as on the cpu, bit for bit.

#include "ops/dispatch/cuda_operations.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPack = 8;  // elements of one thread: 16 bytes of bf16

/// y = x, any types.
template <typename X, typename Y>
struct Cast {
  const X* x;
  Y* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const Pack<X, N> in = load_pack<N>(x + i);
    Pack<Y, N> out;
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], load_as_float(&in.values[j]));
    }
    store_pack(y + i, out);
  }
};

/// y = a + b, any types.
template <typename A, typename B, typename Y>
struct Add {
  const A* a;
  const B* b;
  Y* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const Pack<A, N> left = load_pack<N>(a + i);
    const Pack<B, N> right = load_pack<N>(b + i);
    Pack<Y, N> out;
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j],
                       load_as_float(&left.values[j]) + load_as_float(&right.values[j]));
    }
    store_pack(y + i, out);
  }
};

/// Blocks in x go over the columns, those in y over the rows.
template <typename Y>
__global__ void add_bias_kernel(Y* y, const float* bias, int64_t rows, int64_t columns) {
  for (int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; column < columns;
       column += int64_t{gridDim.x} * blockDim.x) {
    const float offset = bias[column];
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
      Y* element = y + row * columns + column;
      store_from_float(element, load_as_float(element) + offset);
    }
  }
}

/// The same blocks, over bytes.
__global__ void copy_columns_kernel(const uint8_t* x, int64_t stride, uint8_t* y, int64_t width,
                                    int64_t rows) {
  for (int64_t byte = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; byte < width;
       byte += int64_t{gridDim.x} * blockDim.x) {
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
      y[row * width + byte] = x[row * stride + byte];
    }
  }
}

struct ColumnsToAdd {
  int64_t x_stride, y_stride, rows, columns;
  float factor;
  bool overwrites;
};

/// The same blocks, over columns.
template <typename X, typename Y>
__global__ void add_columns_kernel(const X* x, Y* y, ColumnsToAdd call) {
  for (int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; column < call.columns;
       column += int64_t{gridDim.x} * blockDim.x) {
    for (int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
      Y* const to = y + row * call.y_stride + column;
      const float before = call.overwrites ? 0.0F : load_as_float(to);
      store_from_float(to, before + call.factor * load_as_float(x + row * call.x_stride + column));
    }
  }
}

/// partial[chunk, c] = sum of the chunk's rows, in order. Block (i, chunk); a thread has a column.
template <typename X>
__global__ void sum_rows_kernel(const X* dy, float* partial, int64_t rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t chunk = blockIdx.y;
  if (column >= columns) {
    return;
  }
  const int64_t end = (chunk + 1) * kBiasChunkRows < rows ? (chunk + 1) * kBiasChunkRows : rows;
  float sum = 0.0F;
  for (int64_t row = chunk * kBiasChunkRows; row < end; ++row) {
    sum += load_as_float(dy + row * columns + column);
  }
  partial[chunk * columns + column] = sum;
}

/// total[c] (+)= the partial sums, in order.
__global__ void add_partial_kernel(const float* partial, float* total, int64_t chunks,
                                   int64_t columns, bool overwrite) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) {
    return;
  }
  float sum = overwrite ? 0.0F : total[column];
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    sum += partial[chunk * columns + column];
  }
  total[column] = sum;
}

struct Fill {
  float* y;
  float value;

  template <int N>
  __device__ void run(int64_t i) const {
    Pack<float, N> out;
    for (int j = 0; j < N; ++j) {
      out.values[j] = value;
    }
    store_pack(y + i, out);
  }
};

struct ScaleBy {
  float* y;
  const float* factor;

  template <int N>
  __device__ void run(int64_t i) const {
    Pack<float, N> values = load_pack<N>(y + i);
    for (int j = 0; j < N; ++j) {
      values.values[j] *= *factor;
    }
    store_pack(y + i, values);
  }
};

}  // namespace

void cast(Stream stream, ConstView x, View y) {
  with_float_type(x.dtype, [&]<typename X>(TypeTag<X>) {
    with_float_type(y.dtype, [&]<typename Y>(TypeTag<Y>) {
      map<kPack>(stream, y.count(),
                 is_aligned(x.data, sizeof(X) * kPack) && is_aligned(y.data, sizeof(Y) * kPack),
                 Cast<X, Y>{x.as<X>(), y.as<Y>()});
    });
  });
}

void add(Stream stream, ConstView a, ConstView b, View y) {
  with_float_type(a.dtype, [&]<typename A>(TypeTag<A>) {
    with_float_type(b.dtype, [&]<typename B>(TypeTag<B>) {
      with_float_type(y.dtype, [&]<typename Y>(TypeTag<Y>) {
        map<kPack>(stream, y.count(),
                   is_aligned(a.data, sizeof(A) * kPack) && is_aligned(b.data, sizeof(B) * kPack) &&
                       is_aligned(y.data, sizeof(Y) * kPack),
                   Add<A, B, Y>{a.as<A>(), b.as<B>(), y.as<Y>()});
      });
    });
  });
}

void add_bias(Stream stream, View y, ConstView bias) {
  const int64_t columns = y.shape.back();
  const int64_t rows = y.shape.rows();
  const auto row_blocks = static_cast<unsigned>(rows < 1024 ? rows : 1024);
  with_float_type(y.dtype, [&]<typename Y>(TypeTag<Y>) {
    launch(stream, {{blocks_for(stream, columns), row_blocks}, kBlock}, add_bias_kernel<Y>,
           y.as<Y>(), bias.as<float>(), rows, columns);
  });
}

void copy_columns(Stream stream, ConstView x, int64_t first, View y) {
  const auto width = static_cast<int64_t>(bytes_of_rows(y.dtype, 1, y.shape.back()));
  const int64_t rows = y.shape.rows();
  const auto row_blocks = static_cast<unsigned>(rows < 1024 ? rows : 1024);
  launch(stream, {{blocks_for(stream, width), row_blocks}, kBlock}, copy_columns_kernel,
         x.as<uint8_t>() + bytes_of_rows(x.dtype, 1, first),
         static_cast<int64_t>(bytes_of_rows(x.dtype, 1, x.shape.back())), y.as<uint8_t>(), width,
         rows);
}

void add_columns(Stream stream, const AddColumns& call) {
  const int64_t rows = call.y.shape.rows();
  const auto row_blocks = static_cast<unsigned>(rows < 1024 ? rows : 1024);
  with_float_type(call.x.dtype, [&]<typename X>(TypeTag<X>) {
    with_float_type(call.y.dtype, [&]<typename Y>(TypeTag<Y>) {
      launch(stream, {{blocks_for(stream, call.columns), row_blocks}, kBlock},
             add_columns_kernel<X, Y>, call.x.as<X>() + call.x_first, call.y.as<Y>() + call.y_first,
             ColumnsToAdd{call.x.shape.back(), call.y.shape.back(), rows, call.columns, call.factor,
                          call.overwrites});
    });
  });
}

void bias_backward(Stream stream, ConstView dy, View grad, View scratch, bool overwrite) {
  const int64_t columns = grad.count();
  const int64_t rows = dy.count() / columns;
  const int64_t chunks = bias_partial_rows(rows);
  const auto column_blocks = static_cast<unsigned>(ceil_div(columns, kBlock));
  with_float_type(dy.dtype, [&]<typename X>(TypeTag<X>) {
    launch(stream, {{column_blocks, static_cast<unsigned>(chunks)}, kBlock}, sum_rows_kernel<X>,
           dy.as<X>(), scratch.as<float>(), rows, columns);
  });
  launch(stream, {column_blocks, kBlock}, add_partial_kernel, scratch.as<float>(), grad.as<float>(),
         chunks, columns, overwrite);
}

void fill(Stream stream, View y, float value) {
  map<4>(stream, y.count(), is_aligned(y.data), Fill{y.as<float>(), value});
}

void scale_by(Stream stream, View y, const float* factor) {
  map<4>(stream, y.count(), is_aligned(y.data), ScaleBy{y.as<float>(), factor});
}

}  // namespace fp8train::ops::cuda
