#pragma once
// Parts of a cpu GEMM outside of the product: memory that is reused between calls, operands
// converted to the type that is multiplied, and the last steps of the result.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/not_copied.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_kernels_cpu.h"

namespace fp8train::ops::cpu {

/// Memory that only grows, 256-byte aligned; counted by cpu_gemm_workspace_bytes. Contents are lost
/// when it grows.
class GrowingBuffer : NotCopied {
 public:
  ~GrowingBuffer() { release(); }

  void* reserve(size_t bytes);

 private:
  void release() noexcept;

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// The memory that one product takes in addition to its operands. One without memory counts what a
/// product takes: functions that are given it compute nothing.
class GemmMemory {
 public:
  GemmMemory() = default;
  GemmMemory(void* data, size_t bytes) : data_(static_cast<char*>(data)), bytes_(bytes) {}

  bool counts() const { return data_ == nullptr; }
  size_t taken() const { return taken_; }
  /// Returns memory that is 256-byte aligned; of no use where it is counted.
  void* take(size_t bytes);

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  size_t taken_ = 0;
};

/// Returns the bytes that gemm() takes.
size_t gemm_workspace_bytes(const Gemm& call);
/// gemm() with that memory; operands may have any matrix where they are not read.
void multiply(Stream stream, const Gemm& call, GemmMemory& memory);

/// FP8TRAIN_CPU_GEMM, the type that bf16 operands and codes are multiplied in: fp32 or bf16;
/// nothing where it is not set. Throws ConfigError for another value.
std::optional<DType> gemm_units_of_environment();

/// The operand in `type` (fp32, bf16; int8 codes as they are): what is stored where that fits, else
/// a copy. With `row_major`, op(operand) itself, the transposition carried out.
const void* prepare_operand(const GemmOperand& operand, DType type, bool row_major,
                            GemmMemory& memory);

/// Rows of op(operand), as prepare_operand() has them: in `to`, or where they are stored.
const void* prepare_rows(const GemmOperand& operand, int64_t first, int64_t rows, DType type,
                         void* to);

/// The type in which an operand is multiplied, if oneDNN has a blocked kernel for the product:
/// fp32, bf16 or, of int8 codes, int8.
DType multiplied_type(const GemmOperand& operand);

constexpr int64_t kExactDepth = 1024;   // 1024 products of int8 codes are at most 2^24
constexpr int64_t kInt32Depth = 65536;  // that many of an int8 code and one plus 128 are below 2^31

/// Whether one product may sum over k: products of int8 codes have the exact sum, rounded once, so
/// that they have the same bits on every processor.
bool may_be_whole(const GemmOperand& operand, int64_t k, DType type);

/// Writes op(b) in the layout packed_layout() for `type`; there must be one.
void pack(Stream stream, const GemmOperand& b, DType type, void* packed, GemmMemory& memory);

/// Whether the product of these extents reads the packed b. Where it does, b's matrix is not read.
bool reads_packed(const Gemm& call);

/// multiply() of operands that have a scale for each block.
void multiply_blocks(Stream stream, const Gemm& call, GemmMemory& memory);

/// Codes times the scales of their blocks, without those above them, exact in the type that they
/// are multiplied in.
View values_under(Stream stream, const GemmOperand& operand, GemmMemory& memory);

/// Product of the reciprocal scales of the two tensors.
float scale_of(const Gemm& call);

/// The last steps of the whole result, without a product yet, which `scale` is for.
ProductEpilogue epilogue_of(const Gemm& call, float scale);

/// Returns the part of `all` for `rows` rows from first_row and `columns` columns from
/// first_column, still without a product.
ProductEpilogue part_of(const ProductEpilogue& all, int64_t first_row, int64_t rows,
                        int64_t first_column, int64_t columns);

/// Runs on the calling thread.
void finish_product(const ProductEpilogue& part);

/// Runs on the calling thread.
void scale_partial(const ScaledPartial& part);

/// ops/gemm/short_accumulator.h; over the threads.
void short_product(const ShortProduct& product);

/// fp32 products [M, N] into the result, rows over the threads.
void finish_rows(const Gemm& call, const float* product);

}  // namespace fp8train::ops::cpu
