#include <algorithm>

#include "ops/dispatch/meta_counts.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::ops::meta {
namespace {

/// Partial sums of blocks are promoted to fp32 in any case.
Arithmetic arithmetic_of(const Gemm& call, bool dequantized) {
  const DType type = call.a.matrix().dtype;
  if (dequantized) {
    return Arithmetic::bits16;
  }
  if (facts_of(type).bits <= 8) {
    static const DeviceTraits cpu;
    const bool promoted =
        call.a.has_blocks() &&
        !gemm_support(cpu, {call.a.tensor.format, call.b.tensor.format, call.c.dtype, true})
             .fast_accumulate;
    return call.fast_accumulate && !promoted ? Arithmetic::fp8_fast : Arithmetic::fp8;
  }
  return type == DType::f32 ? Arithmetic::f32 : Arithmetic::bits16;
}

/// `dequantized`: the library multiplies 16-bit values, of the type of a 16-bit result.
OpProduct product_of(const Gemm& call, bool dequantized, bool fast) {
  const DType plain = call.c.dtype == DType::f16 ? DType::f16 : DType::bf16;
  OpProduct product = {.m = call.c.shape[0],
                       .n = call.c.shape[1],
                       .k = call.depth(),
                       .type = {.a = dequantized ? plain : call.a.matrix().dtype,
                                .b = dequantized ? plain : call.b.matrix().dtype,
                                .c = call.c.dtype,
                                .fast_accumulate = fast},
                       .adds = call.beta != 0.0F};
  if (call.a.has_blocks() && call.b.has_blocks() && !dequantized) {
    const auto pairs = block_pairs();
    const auto found = std::ranges::find_if(pairs, [&](const BlockPair& pair) {
      return pair.a == call.a.tensor.format.block && pair.b == call.b.tensor.format.block &&
             pair.scale == dtype_of(call.a.tensor.format.scale_type);
    });
    product.type.scales = found == pairs.end() ? ScalePair::tensor : found->scales;
  }
  return product;
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

/// With scratch the backend multiplies dequantized operands, in two bytes an element, or padded
/// codes.
void gemm(Stream stream, const Gemm& call) {
  const double flops =
      2.0 * static_cast<double>(call.c.count()) * static_cast<double>(call.depth());
  const int64_t padded_k =
      call.scratch.empty() ? 0 : gemm_support(meta_context(stream).device->traits(), call).padded_k;
  // The cpu computes in its scratch what counts as one product.
  const bool by_library = meta_context(stream).device->traits().fp8_gemm_by_library;
  const bool dequantized = by_library && !call.scratch.empty() && padded_k == 0;
  const bool narrow =
      facts_of(call.a.matrix().dtype).bits <= 8 && facts_of(call.b.matrix().dtype).bits <= 8;
  const bool native = narrow && !dequantized;
  stream.counters().gemm_flops += flops;
  stream.counters().gemm_flops_8bit += native ? flops : 0.0;
  OpWork work = {.bytes = bytes_of(call.c) * (call.beta != 0.0F ? 2 : 1),
                 .launches = dequantized || padded_k != 0 ? 3 : 1,
                 .flops = flops,
                 .arithmetic = arithmetic_of(call, dequantized)};
  work.product = product_of(call, dequantized, work.arithmetic == Arithmetic::fp8_fast);
  for (const GemmOperand* operand : {&call.a, &call.b}) {
    work.bytes += bytes_of(operand->matrix());
    work.bytes += operand->has_blocks() ? bytes_of(operand->tensor.scales) : 0.0;
    work.bytes += dequantized ? 2 * 2 * static_cast<double>(operand->matrix().count()) : 0.0;
    work.bytes += padded_k != 0 ? 2 * bytes_of(operand->matrix()) : 0.0;
  }
  add_bias_work(call.c, call.bias, native, work);
  count(stream, work);
}

void pack_operand(Stream stream, const GemmOperand& b, View packed, View /*scratch*/) {
  count(stream, {.bytes = bytes_of(b.matrix()) + bytes_of(packed), .launches = 1});
}

bool probe_gemms(Device& /*device*/, const Fp8Products* /*known*/) {
  return true;
}

void tune_gemms(Device& /*device*/, const std::string& /*folder*/) {}

}  // namespace fp8train::ops::meta
