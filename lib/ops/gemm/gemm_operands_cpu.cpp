#include "ops/gemm/gemm_operands_cpu.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "numeric/bulk.h"
#include "numeric/isa_tables.h"
#include "ops/support/checks.h"

namespace fp8train {
using ops::cpu::GemmKernels;
FP8TRAIN_ISA_TABLES(GemmKernels, gemm_kernels)
}  // namespace fp8train

namespace fp8train::ops::cpu {
namespace {

constexpr int64_t kConvertChunk = 16384;  // elements that one thread converts at a time
std::atomic<size_t> workspace_total = 0;
constexpr size_t kWorkspaceAlignment = 256;
constexpr std::align_val_t kAlignment{kWorkspaceAlignment};

const GemmKernels& kernels() {
  static const GemmKernels& best = best_of(gemm_kernels_tables());
  return best;
}

/// Decodes `count` elements, over the threads.
template <typename From, typename To>
void decode_all(const void* from, void* to, int64_t count) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  const int64_t chunks = ceil_div(count, kConvertChunk);
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) if (chunks > 1)
#endif
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * kConvertChunk;
    const int64_t size = std::min(kConvertChunk, count - begin);
    decode(source + begin, target + begin, static_cast<size_t>(size));
  }
}

/// Decodes a matrix as it is stored into `type`, fp32 or bf16.
void decode_matrix(const ConstView& matrix, DType type, void* to) {
  const int64_t count = matrix.count();
  if (type == DType::bf16) {
    return with_code_type(matrix.dtype, [&](auto tag) {
      decode_all<typename decltype(tag)::Type, bf16>(matrix.data, to, count);
    });
  }
  using Types = decltype(TypeList<bf16, f16>{} + ByteCodes{});
  Types::with(matrix.dtype, [&](auto tag) {
    decode_all<typename decltype(tag)::Type, float>(matrix.data, to, count);
  });
}

}  // namespace

void* GrowingBuffer::reserve(size_t bytes) {
  if (bytes > bytes_) {
    release();
    data_ = ::operator new(bytes, kAlignment);
    bytes_ = bytes;
    workspace_total += bytes;
  }
  return data_;
}

void GrowingBuffer::release() noexcept {
  ::operator delete(data_, kAlignment);
  workspace_total -= bytes_;
  data_ = nullptr;
  bytes_ = 0;
}

void* GemmMemory::take(size_t bytes) {
  static char nowhere;
  const size_t begin = taken_;
  taken_ += round_up(bytes, kWorkspaceAlignment);
  check(counts() || taken_ <= bytes_, "gemm: more memory than was counted");
  return counts() ? &nowhere : data_ + begin;
}

std::optional<DType> gemm_units_of_environment() {
  const char* value = std::getenv("FP8TRAIN_CPU_GEMM");
  if (value == nullptr) {
    return std::nullopt;
  }
  for (const DType type : {DType::f32, DType::bf16}) {
    if (name_of(type) == value) {
      return type;
    }
  }
  throw ConfigError(std::string("FP8TRAIN_CPU_GEMM=") + value + ": expected fp32 or bf16");
}

const void* prepare_operand(const GemmOperand& operand, DType type, bool row_major,
                            GemmMemory& memory) {
  const ConstView matrix = operand.matrix();
  const bool transpose = row_major && operand.transposed;
  if (matrix.dtype == type && !transpose) {
    return matrix.data;
  }
  void* to = memory.take(static_cast<size_t>(matrix.count()) * size_of(type));
  check(!transpose || is_fp8(matrix.dtype) || is_float_type(matrix.dtype),
        "matrices of this element type are not transposed");
  if (memory.counts()) {
    return to;
  }
  const int64_t rows = matrix.shape[operand.transposed ? 1 : 0];
  return transpose ? prepare_rows(operand, 0, rows, type, to)
                   : (decode_matrix(matrix, type, to), to);
}

const void* prepare_rows(const GemmOperand& operand, int64_t first, int64_t rows, DType type,
                         void* to) {
  const ConstView matrix = operand.matrix();
  const int64_t columns = matrix.shape[1];
  const auto* const data = static_cast<const char*>(matrix.data);
  const auto size = static_cast<int64_t>(size_of(matrix.dtype));
  if (operand.transposed) {
    kernels().transpose_operand(
        {data + first * size, matrix.dtype, matrix.shape[0], rows, columns, to, type});
    return to;
  }
  const ConstView part = {data + first * columns * size, matrix.dtype, {rows, columns}};
  if (matrix.dtype == type) {
    return part.data;
  }
  decode_matrix(part, type, to);
  return to;
}

float scale_of(const Gemm& call) {
  const float* a = call.a.tensor.tensor_scale;
  const float* b = call.b.tensor.tensor_scale;
  return (a == nullptr ? 1.0F : *a) * (b == nullptr ? 1.0F : *b);
}

ProductEpilogue epilogue_of(const Gemm& call, float scale) {
  const int64_t n = call.c.shape[1];
  return {.product = nullptr,
          .product_stride = n,
          .rows = call.c.shape[0],
          .columns = n,
          .scale = scale,
          .add = call.beta != 0.0F,
          .bias = call.bias.as<float>(),
          .c = call.c.data,
          .c_type = call.c.dtype,
          .c_stride = n};
}

ProductEpilogue part_of(const ProductEpilogue& all, int64_t first_row, int64_t rows,
                        int64_t first_column, int64_t columns) {
  ProductEpilogue part = all;
  part.rows = rows;
  part.columns = columns;
  part.bias = all.bias == nullptr ? nullptr : all.bias + first_column;
  part.c = static_cast<char*>(all.c) +
           static_cast<size_t>(first_row * all.c_stride + first_column) * size_of(all.c_type);
  return part;
}

void finish_product(const ProductEpilogue& part) {
  kernels().finish(part);
}

void scale_partial(const ScaledPartial& part) {
  kernels().scale_partial(part);
}

void short_product(const ShortProduct& product) {
  kernels().short_product(product);
}

void finish_rows(const Gemm& call, const float* product) {
  const ProductEpilogue all = epilogue_of(call, scale_of(call));
  const int64_t rows_at_once = std::max<int64_t>(1, kConvertChunk / all.columns);
  const int64_t chunks = ceil_div(all.rows, rows_at_once);
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) if (chunks > 1)
#endif
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * rows_at_once;
    ProductEpilogue part =
        part_of(all, first, std::min(rows_at_once, all.rows - first), 0, all.columns);
    part.product = product + first * all.columns;
    kernels().finish(part);
  }
}

}  // namespace fp8train::ops::cpu

size_t fp8train::ops::cpu_gemm_workspace_bytes() {
  return cpu::workspace_total;
}
