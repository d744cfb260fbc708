#pragma once
// Matrix product of row-major operands with fp32 accumulation:  c = op(a) * op(b) + beta * c  (+
// bias), of operands that are plain or quantized. Both plain: fp32, bf16 or fp16. Of codes with one
// scale for the tensor: any mix of e4m3, e5m2 and bf16. Codes with a scale for each block are e4m3,
// e5m2, e2m1 or (row scales, on both sides) int8, and both stored along K: a as it is, b
// transposed. What blocks mean (cuBLAS documentation, "Narrow precision data types usage";
// DeepSeek-V3, arXiv 2412.19437, section 3.3.2; OCP MX specification, 6.2):
//
//   row x row             fp32 sum over the whole K, times scales_a[m] * scales_b[n];
//   1x128 or 128x128,     for each 128 of K the fp32 partial sum times scales_a * scales_b,
//   on either side        summed in fp32 in the order of K; not 128x128 on both sides;
//   1x32 x 1x32 (e8m0),   each code times its power of two, which is exact, then an fp32 sum;
//   and 32x32 on a side
//   1x16 x 1x16 (e4m3),   each code times its scale, exact in bf16, then an fp32 sum, times
//   and 16x16 on a side   tensor_scale_a * tensor_scale_b, or those of rows.
//
// FP8 codes are exact in bf16, so on the cpu they are decoded to bf16 (or fp32 where the processor
// has no bf16 units) and the only rounding is that of the fp32 accumulation. Scales of blocks that
// are powers of two go to the operands first, which rounds nothing, down to values of 2^-126
// (smaller ones may count as 0). On the cpu the bits depend on shapes and processor, not on the
// number of threads; converted operands are in scratch memory of the caller, or where that is too
// little in memory that the thread holds. Where a chip or its library lacks a product of blocks, or
// refuses a shape, both operands are dequantized to bf16 (to fp16 for an fp16 c) in such memory and
// multiplied so: a step allocates nothing, and gemm_support() says why. Where tensor
// cores take K in multiples only, scaled operands are copied there with zeros behind them.

#include <string>
#include <utility>

#include "device/device.h"
#include "tensor/encoded.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// Values, or one orientation of codes: rank 2, only read.
struct GemmOperand {
  Encoded tensor;           ///< a null tensor_scale means 1
  bool transposed = false;  ///< use the transpose of what is stored
  /// Of b alone: what pack_operand() has made of this operand, which a product reads instead of it.
  /// Empty: not packed.
  ConstView packed;

  GemmOperand() = default;
  // NOLINTBEGIN(google-explicit-constructor): as a product's arguments are written
  GemmOperand(Encoded encoded, bool is_transposed = false)
      : tensor(std::move(encoded)), transposed(is_transposed) {}
  GemmOperand(const View& values, bool is_transposed = false)
      : GemmOperand(Encoded(values), is_transposed) {}
  GemmOperand(const ConstView& values, bool is_transposed = false)
      : GemmOperand(View{const_cast<void*>(values.data), values.dtype, values.shape},
                    is_transposed) {}
  // NOLINTEND(google-explicit-constructor)

  /// Values or codes as stored.
  ConstView matrix() const { return tensor.codes; }
  /// Whether these are values, or codes that are read without a scale.
  bool is_plain() const { return !tensor.format.is_scaled(); }
  /// Whether codes have a scale for each block, and not one for the tensor.
  bool has_blocks() const { return !is_plain() && tensor.format.block != per::tensor; }
};

/// The tensor as dequantize() reads it without the scale of the tensor above those of blocks, which
/// comes on top of a sum.
inline Encoded without_tensor_scale(Encoded tensor) {
  tensor.tensor_scale = nullptr;
  return tensor;
}

/// The arguments of gemm().
struct Gemm {
  GemmOperand a;      ///< op(a): [M, K]
  GemmOperand b;      ///< op(b): [K, N]
  View c;             ///< [M, N]: fp32, bf16 or fp16
  float beta = 0.0F;  ///< 0 or 1; 1 only with fp32 c
  ConstView bias;     ///< fp32 [N], may be empty; added before c is rounded, on cuda in c's type
  bool fast_accumulate =
      true;  ///< cuda FP8 only: keep partial sums in the tensor core's short accumulator; without
             ///< effect where sums of blocks of 128 are promoted to fp32 anyway
  /// cpu, FP8 times FP8 with scales for tensors or rows: add as that accumulator does
  /// (ops/gemm/short_accumulator.h), slowly.
  bool emulate_accumulator = false;
  /// Any type, 256-byte aligned, of gemm_scratch_bytes. Empty for 0, and where no memory was
  /// planned for this shape: the device then takes memory of its own if it has to, with a warning,
  /// and holds it.
  View scratch;

  /// Returns K, the extent that the product contracts.
  int64_t depth() const { return a.matrix().shape[a.transposed ? 0 : 1]; }
};

/// Throws InternalError when shapes, formats or scratch do not fit.
void gemm(Stream stream, const Gemm& call);

/// Returns the bytes that pack_operand() writes for an operand b on a device with these traits; 0:
/// products there read it as it is. Without FP8TRAIN_CPU_PACK=1 only operands of bf16 units are
/// packed. Throws ConfigError for another value of it than 0 and 1.
size_t packed_bytes(const DeviceTraits& traits, const GemmOperand& b);

/// Writes op(b) in the layout that the device's library reads, with the same values and without the
/// scales that a product applies to its sum: work that each product does otherwise. packed: u8, of
/// packed_bytes(); scratch: u8, of pack_scratch_bytes(), or less, where the device takes memory of
/// its own. The results of products have the same bits.
void pack_operand(Stream stream, const GemmOperand& b, View packed, View scratch = {});

/// Returns the bytes of scratch, u8, that pack_operand() needs for an operand with packed_bytes().
size_t pack_scratch_bytes(const GemmOperand& b);

/// To be called once at start-up: on a GPU each new kind of product is then timed with every
/// algorithm that its library suggests, outside of the step's memory, and keeps the fastest, which
/// is also stored in a file of `folder` for later runs. Other devices have nothing to tune. Throws
/// DeviceError when the folder cannot be used.
void tune_gemms(Device& device, const std::string& folder);

/// The type and instructions of a cpu GEMM of this operand type on this machine: "bf16 (amx)",
/// "bf16 (avx512_bf16)", "int8 (avx512_vnni)", "fp32 (avx512)", ...
const char* cpu_gemm_engine(DType operand);

/// Bytes that cpu GEMMs hold in workspaces, over all threads; no device's ledger counts them.
size_t cpu_gemm_workspace_bytes();

}  // namespace fp8train::ops
