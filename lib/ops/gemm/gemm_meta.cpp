#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

Arithmetic arithmetic_of(const Gemm& call) {
  const DType type = call.a.matrix.dtype;
  if (size_of(type) == 1) {
    return call.fast_accumulate ? Arithmetic::fp8_fast : Arithmetic::fp8;
  }
  return type == DType::f32 ? Arithmetic::f32 : Arithmetic::bits16;
}

/// Partial sums of blocks are promoted to fp32 in any case.
Arithmetic arithmetic_of(const ScaledGemm& call) {
  const ScaleBlock block = call.a.format.block;
  const bool promoted = block == per::block_1x128 || block == per::block_128x128;
  return call.fast_accumulate && !promoted ? Arithmetic::fp8_fast : Arithmetic::fp8;
}

/// A bias is cast to the type of the result; to an fp32 sum of FP8 products it is added afterwards.
void add_bias_work(const View& c, const ConstView& bias, bool fp8, OpWork& work) {
  if (bias.empty()) {
    return;
  }
  if (c.dtype != DType::f32) {
    work.launches += 1;
    work.bytes += bytes_of(bias) / 2;
  } else if (fp8) {
    work.launches += 1;
    work.bytes += 2 * bytes_of(c);
  }
  work.bytes += bytes_of(bias);
}

}  // namespace

void gemm(Stream stream, const Gemm& call) {
  const int64_t m = call.c.shape[0];
  const int64_t n = call.c.shape[1];
  const int64_t k = call.a.matrix.shape[call.a.transposed ? 0 : 1];
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const bool narrow = size_of(call.a.matrix.dtype) == 1 && size_of(call.b.matrix.dtype) == 1;
  stream.counters().gemm_flops += flops;
  stream.counters().gemm_flops_8bit += narrow ? flops : 0.0;
  OpWork work = {.bytes = bytes_of(call.a.matrix) + bytes_of(call.b.matrix) +
                          bytes_of(call.c) * (call.beta != 0.0F ? 2 : 1),
                 .flops = flops,
                 .arithmetic = arithmetic_of(call)};
  add_bias_work(call.c, call.bias, narrow, work);
  count(stream, work);
}

/// With scratch the backend multiplies dequantized operands, in two bytes an element.
void scaled_gemm(Stream stream, const ScaledGemm& call) {
  const double k = static_cast<double>(call.a.matrix.codes.shape[1]);
  const double flops = 2.0 * static_cast<double>(call.c.count()) * k;
  const bool native = call.scratch.empty();
  stream.counters().gemm_flops += flops;
  stream.counters().gemm_flops_8bit += native ? flops : 0.0;
  OpWork work = {.bytes = bytes_of(call.c) * (call.beta != 0.0F ? 2 : 1),
                 .launches = native ? 1 : 3,
                 .flops = flops,
                 .arithmetic = native ? arithmetic_of(call) : Arithmetic::bits16};
  for (const BlockwiseView* operand : {&call.a.matrix, &call.b.matrix}) {
    work.bytes += bytes_of(operand->codes) + bytes_of(operand->scale_inv);
    work.bytes += native ? 0.0 : 2 * 2 * static_cast<double>(operand->codes.count());
  }
  add_bias_work(call.c, call.bias, native, work);
  count(stream, work);
}

void probe_scaled_gemm(Device& /*device*/) {}

void tune_gemms(Device& /*device*/, const std::string& /*folder*/) {}

}  // namespace fp8train::ops::meta
