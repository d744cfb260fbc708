// Compiled once per CPU level.

#include "ops/gemm/gemm_kernels_cpu.h"

#include "base/math.h"
#include "ops/gemm/short_accumulator.h"
#include "ops/support/kernel_support_cpu.h"
#include "ops/support/transpose_cpu.h"

namespace fp8train::FP8TRAIN_ISA_NS {
namespace {

using namespace ops::cpu;                   // NOLINT(google-build-using-namespace)
using namespace ops::cpu::FP8TRAIN_ISA_NS;  // NOLINT(google-build-using-namespace)

constexpr int64_t kTile = 64;

/// The value as it is multiplied: fp32, or the bits of a bf16 (exact for every FP8 code).
template <typename From>
FP8TRAIN_HD void convert(From from, float* to) {
  *to = decode(from);
}
FP8TRAIN_HD void convert(bf16 from, uint16_t* to) {
  *to = from.bits;
}
template <typename Code>
FP8TRAIN_HD void convert(Code from, uint16_t* to) {
  *to = widen(from).bits;
}

/// Converts and transposes an operand by tiles. To: fp32, or the bits of a bf16.
template <typename From, typename To>
void transpose_converted(const TransposedOperand& call) {
  const auto* from = static_cast<const From*>(call.from);
  To* to = static_cast<To*>(call.to);
  const int64_t panels = ceil_div(call.columns, kTile);
#pragma omp parallel for schedule(static) if (call.rows * call.columns >= kParallelElements)
  for (int64_t panel = 0; panel < panels; ++panel) {
    alignas(64) To tile[kTile * kTile];
    const int64_t first_column = panel * kTile;
    const int64_t columns = minimum(kTile, call.columns - first_column);
    for (int64_t first_row = 0; first_row < call.rows; first_row += kTile) {
      const int64_t rows = minimum(kTile, call.rows - first_row);
      for (int64_t r = 0; r < rows; ++r) {
        const From* values = from + (first_row + r) * call.stride + first_column;
        for (int64_t c = 0; c < columns; ++c) {
          convert(values[c], tile + r * kTile + c);
        }
      }
      transpose(tile, kTile, rows, columns, to + first_column * call.rows + first_row, call.rows);
    }
  }
}

void transpose_operand(const TransposedOperand& call) {
  if (call.to_type == DType::bf16) {
    using Types = decltype(TypeList<bf16>{} + Fp8Types{});
    return Types::with(call.from_type, [&](auto tag) {
      transpose_converted<typename decltype(tag)::Type, uint16_t>(call);
    });
  }
  using Types = decltype(FloatTypes{} + Fp8Types{});
  Types::with(call.from_type,
              [&](auto tag) { transpose_converted<typename decltype(tag)::Type, float>(call); });
}

void finish(const ProductEpilogue& call) {
  with_float_type(call.c_type, [&]<typename T>(TypeTag<T>) {
    for (int64_t row = 0; row < call.rows; ++row) {
      const float* __restrict product = call.product + row * call.product_stride;
      const float* __restrict bias = call.bias;
      T* __restrict c = static_cast<T*>(call.c) + row * call.c_stride;
      if (call.add) {
        for (int64_t i = 0; i < call.columns; ++i) {
          const float sum = product[i] * call.scale + load_as_float(c + i);
          store_from_float(c + i, bias == nullptr ? sum : sum + bias[i]);
        }
      } else if (bias != nullptr) {
        for (int64_t i = 0; i < call.columns; ++i) {
          store_from_float(c + i, product[i] * call.scale + bias[i]);
        }
      } else {
        for (int64_t i = 0; i < call.columns; ++i) {
          store_from_float(c + i, product[i] * call.scale);
        }
      }
    }
  });
}

void scale_partial(const ScaledPartial& call) {
  const float* __restrict column_scales = call.column_scales;
  for (int64_t row = 0; row < call.rows; ++row) {
    const float* product = call.product + row * call.columns;
    float* sum = call.sum + row * call.columns;
    const float row_scale = call.row_scales[row];
#pragma GCC ivdep
    for (int64_t i = 0; i < call.columns; ++i) {
      const float scaled = product[i] * (row_scale * column_scales[i]);
      sum[i] = call.add ? sum[i] + scaled : scaled;
    }
  }
}

void short_product(const ShortProduct& call) {
#pragma omp parallel for schedule(static) if (call.rows > 1)
  for (int64_t row = 0; row < call.rows; ++row) {
    const float* a = call.a + row * call.depth;
    for (int64_t column = 0; column < call.columns; column += kShortAccumulatorColumns) {
      const int64_t columns = minimum(kShortAccumulatorColumns, call.columns - column);
      alignas(64) float sums[kShortAccumulatorColumns] = {};
      for (int64_t i = 0; i < call.depth; i += kShortAccumulatorDepth) {
        add_short_products(a + i, call.b + i * call.columns + column, call.columns,
                           minimum(kShortAccumulatorDepth, call.depth - i), columns, sums);
      }
      __builtin_memcpy(call.product + row * call.columns + column, sums,
                       static_cast<size_t>(columns) * sizeof(float));
    }
  }
}

constexpr GemmKernels kTable = {.transpose_operand = transpose_operand,
                                .finish = finish,
                                .scale_partial = scale_partial,
                                .short_product = short_product};

}  // namespace

const ops::cpu::GemmKernels& gemm_kernels() {
  return kTable;
}

}  // namespace fp8train::FP8TRAIN_ISA_NS
