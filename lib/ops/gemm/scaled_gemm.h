#pragma once
// Matrix product of FP8 or int8 operands that have a scale for each block:  c = a * b^T + beta *
// c
// (+ bias), both operands stored along K. int8 takes row scales, on both sides. What each
// block means (cuBLAS documentation, "Narrow precision data types usage"; DeepSeek-V3
// report, 3.3.2; OCP MX specification, 6.2):
//
//   row x row             fp32 sum over the whole K, times scale_inv_a[m] * scale_inv_b[n];
//   1x128 or 128x128,     for each 128 of K the fp32 partial sum times scale_inv_a * scale_inv_b,
//   on either side        summed in fp32 in the order of K; not 128x128 on both sides;
//   1x32 x 1x32 (e8m0)    each code times its power of two, which is exact, then an fp32 sum.
//
// On the cpu, scales that are powers of two go to the operands first, whatever the size of
// blocks: that rounds nothing, down to values of 2^-126 (smaller ones may count as 0). The cpu's
// bits depend on shapes and processor, not on the number of threads. Where a chip or its library
// lacks a scale mode, both operands are dequantized to bf16 (to fp16 for an fp16 c) in scratch
// memory of the caller and multiplied so: a step allocates nothing, and `scaled_gemm_support` says
// why.

#include <string_view>

#include "device/device.h"
#include "device/stream.h"
#include "tensor/quantized.h"

namespace fp8train::ops {

struct ScaledGemmOperand {
  BlockwiseView matrix;  ///< codes and scale_inv are read; codes [M, K] of a, [N, K] of b
  TensorFormat format;
  ScaleLayout layout = ScaleLayout::row_major;
};

struct ScaledGemm {
  ScaledGemmOperand a, b;
  View c;                            ///< [M, N]: fp32, bf16 or fp16
  float beta = 0.0F;                 ///< 0 or 1; 1 only with fp32 c
  ConstView bias;                    ///< fp32 [N], added to every row; may be empty
  bool fast_accumulate = false;      ///< cuda, row and 1x32 only: keep partial sums in the tensor
                                     ///< core's short accumulator
  bool emulate_accumulator = false;  ///< cpu, row only: as Gemm::emulate_accumulator
  View scratch;  ///< any type, 256-byte aligned, of scaled_gemm_scratch_bytes; empty for 0
};

/// Throws InternalError when shapes, formats or scratch do not fit.
void scaled_gemm(Stream stream, const ScaledGemm& call);

/// How a product runs.
struct ScaledGemmSupport {
  bool native;              ///< with scales; else dequantized to bf16, or fp16 for an fp16 c
  std::string_view reason;  ///< why it is not native, for people
  bool fast_accumulate;     ///< in the tensor core's short accumulator, as asked for and possible
};

/// How a device with these traits runs `call`, of which only shapes, types and layouts are looked
/// at.
ScaledGemmSupport scaled_gemm_support(const DeviceTraits& traits, const ScaledGemm& call);

/// What `call.scratch` needs on a device with these traits; 0 where the product is native.
size_t scaled_gemm_scratch_bytes(const DeviceTraits& traits, const ScaledGemm& call);

/// The same for a product [M, K] x [K, N] of FP8 operands with one scale each, which is never
/// dequantized. Extents of 0 are not known yet and count as aligned.
ScaledGemmSupport tensor_gemm_support(const DeviceTraits& traits, const Fp8Product& product,
                                      int64_t m, int64_t n, int64_t k);

/// To be called once at start-up, before memory is planned: runs a small product of known result
/// for each of the device's Fp8Products, with extents that are not aligned and, where that is
/// refused or gives another result, with aligned ones. What fails is taken out of the device's
/// traits, with a warning. Throws DeviceError where not the library but the GPU fails. Other
/// devices have nothing to find out.
void probe_scaled_gemm(Device& device);

}  // namespace fp8train::ops
