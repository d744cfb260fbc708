#pragma once
// Causal attention with grouped queries, tiled over keys (online soft-max): no (T, T) matrix
// exists. Also rotary embedding and the RMSNorm of heads.

#include <optional>
#include <string>

#include "device/stream.h"
#include "ops/cast/quantize.h"
#include "tensor/view.h"

namespace fp8train::ops {

constexpr int64_t kMaxHeadDim = 512;  // DeviceTraits says what a device has
constexpr int64_t kMaxHeadDimCuda = 256;

/// The extents of one attention, and how it is computed.
struct AttentionShape {
  int64_t batch = 0;
  int64_t query_length = 0;  ///< Tq
  int64_t key_length = 0;    ///< Tk >= Tq; query i sees keys 0 .. Tk - Tq + i
  int64_t heads = 0;         ///< H
  int64_t kv_heads = 0;      ///< Hkv, divides H
  int64_t head_dim = 0;      ///< D, at most kMaxHeadDim
  float scale = 1.0F;        ///< factor of the scores, 1 / sqrt(D)
  /// Backward gives the same bits every time. Kernels of our own always do; cuDNN has an algorithm
  /// of its own for it, with a larger workspace on some chips.
  bool deterministic = false;

  bool operator==(const AttentionShape&) const = default;
};

/// Queries, keys or values as a slice of wider rows, such as those of the fused projection [B * T,
/// (H + 2 Hkv) * D]: element (b, t, h, d) is at data[(b * length_capacity + t) * row_stride + h * D
/// + d].
struct HeadsView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t row_stride = 0;       ///< elements between consecutive positions
  int64_t length_capacity = 0;  ///< rows per sequence in memory (>= length; larger for a KV cache)
};

/// Sequences that hold several documents, which do not see each other. int32 [B, T]: the position
/// at which the document of each position begins, never falling within a sequence. Empty: a
/// sequence is one document. Query i has position Tk - Tq + i; T >= Tk.
using DocumentStarts = ConstView;

/// A tensor that only the kernel has, rounded to codes of value * *scale.
struct KernelCodes {
  DType dtype = DType::e4m3;
  const float* scale = nullptr;  ///< device memory, as the next two
  const float* scale_inv = nullptr;
  float* amax = nullptr;  ///< nullable; combined into
};

/// Attention in FP8 (TransformerEngine, d0067d0, common/fused_attn/fused_attn_fp8.cu; the sums of
/// NVIDIA/cudnn-frontend, 3929da2, test/python/sdpa/fp8_ref.py): q, k and v are codes with one
/// scale, probabilities and the gradients of scores are rounded to codes before each product, and
/// products of codes are summed in fp32. Forward rounds probabilities over the running maximum, of
/// tiles of 64 keys on the cpu; the sum that divides the output has them as they were.
struct AttentionCodes {
  const float* qkv_inv = nullptr;  ///< reciprocal scale, device memory; null: not in FP8
  const float* out_inv = nullptr;  ///< of `out` and `dout` in backward; null: no codes
  const float* dout_inv = nullptr;
  KernelCodes probabilities;
  KernelCodes dscores;  ///< backward only, times the scale of the scores
  /// `out`, or dq, dk and dv in rows as those of q, k and v, cast from fp32. The tensors may then
  /// have no memory.
  QuantizeSink cast;

  bool is_on() const { return qkv_inv != nullptr; }
};

/// The arguments of attention_forward().
struct AttentionForward {
  AttentionShape shape;
  HeadsView q, k, v, out;
  View log_sum_exp;
  DocumentStarts document_starts;
  AttentionCodes codes;
};

/// The arguments of attention_backward().
struct AttentionBackward {
  AttentionShape shape;
  HeadsView q, k, v, out;
  View log_sum_exp;
  HeadsView dout, dq, dk, dv;
  View scratch;
  DocumentStarts document_starts;
  AttentionCodes codes;
};

/// out: [B * Tq, H * D] (a HeadsView too), log_sum_exp: fp32 [B, H, Tq] stored for backward (may be
/// empty where none follows). q, k, v, out share one element type, without codes; soft-max and sums
/// are fp32. On
/// the cpu the bits are the same for any number of threads, but differ between x86 levels with and
/// without fused multiply-add.
void attention_forward(Stream stream, const AttentionForward& call);

/// Writes dq, dk, dv (each a slice like q, k, v; none may overlap an input). dq has their type, dk
/// and dv too or fp32. `scratch`: fp32, attention_backward_scratch() elements.
void attention_backward(Stream stream, const AttentionBackward& call);
/// Elements of `scratch` for these tensors, of which only alignment and strides matter; log_sum_exp
/// and scratch may be empty. A library's need is known once it has a plan, which the first call for
/// a shape makes; on meta, the device that is planned for is asked.
int64_t attention_backward_scratch(Stream stream, const AttentionBackward& call);
/// Bytes that a library which computes these gradients needs; none where our own kernels do.
std::optional<size_t> attention_backward_workspace(Stream stream, const AttentionBackward& call);
/// Elements of `scratch` that kernels of our own need, on every device.
int64_t attention_backward_scratch(const AttentionShape& shape);

/// Names the kernels that compute attention on the stream's device. Empty if there is no choice. On
/// cuda, FP8TRAIN_CUDA_ATTENTION=own|cudnn decides; once backward is planned, also whether it is
/// deterministic, and for which shapes our own kernels run after all.
std::string attention_kernels(Stream stream);

/// The arguments of rope().
struct Rope {
  HeadsView x;
  int64_t batch = 0, length = 0, heads = 0, head_dim = 0;
  ConstView cosines, sines;
  int64_t position_offset = 0;
  bool inverse = false;
  DocumentStarts document_starts;  ///< [B, T]; positions count from there
};

/// Rotates heads in place, half-split pairs (j, j + D / 2) as Hugging Face does: x' = x cos - y
/// sin, y' = y cos + x sin. x: positions b * T + t get angle position_offset + t; tables: fp32
/// [max_positions, D / 2]. `inverse` rotates back (the backward pass).
void rope(Stream stream, const Rope& call);

}  // namespace fp8train::ops
