#pragma once
// Matrix product of row-major operands with fp32 accumulation:  c = scale_a * scale_b * op(a) *
// op(b) + beta * c  (+ bias). Types: both operands fp32, both bf16, both fp16, or any mix of e4m3,
// e5m2 and bf16. FP8 codes are exact in bf16, so on the cpu they are decoded to bf16 (or fp32 where
// the processor has no bf16 units) and the only rounding is that of the fp32 accumulation. On the
// cpu the bits depend on shapes and processor, not on the number of threads. There, each thread
// that calls gemm keeps a workspace for converted operands, which grows in the first step only.

#include <string>

#include "device/device.h"
#include "tensor/view.h"

namespace fp8train::ops {

struct GemmOperand {
  ConstView matrix;                  ///< as stored, rank 2
  bool transposed = false;           ///< use the transpose of what is stored
  const float* scale_inv = nullptr;  ///< device scalar that codes are multiplied by; null: 1
};

struct Gemm {
  GemmOperand a;      ///< op(a): [M, K]
  GemmOperand b;      ///< op(b): [K, N]
  View c;             ///< [M, N]: fp32, bf16 or fp16
  float beta = 0.0F;  ///< 0 or 1; 1 only with fp32 c
  ConstView bias;     ///< fp32 [N], may be empty; added before c is rounded, on cuda in c's type
  bool fast_accumulate =
      true;  ///< cuda FP8 only: keep partial sums in the tensor core's short accumulator
  /// cpu, FP8 times FP8 only: add as that accumulator does (ops/gemm/short_accumulator.h), slowly.
  bool emulate_accumulator = false;
};

/// Throws InternalError when shapes do not fit.
void gemm(Stream stream, const Gemm& call);

/// To be called once at start-up: on a GPU each new kind of product is then timed with every
/// algorithm that its library suggests, outside of the step's memory, and keeps the fastest, which
/// is also stored in a file of `folder` for later runs. Other devices have nothing to tune. Throws
/// DeviceError when the folder cannot be used.
void tune_gemms(Device& device, const std::string& folder);

/// What a cpu GEMM of this operand type really runs on this machine: "bf16 (amx)", "bf16
/// (avx512_bf16)", "fp32 (avx512)", ...
const char* cpu_gemm_engine(DType operand);

/// Bytes that cpu GEMMs hold in workspaces, over all threads; no device's ledger counts them.
size_t cpu_gemm_workspace_bytes();

}  // namespace fp8train::ops
