// Compiled once per x86-64 level (cmake/isa.cmake). Plain loops over numeric/convert.h, which the
// compiler vectorizes.

#include "numeric/bulk_kernels.h"

#include "numeric/convert.h"

namespace fp8train::FP8TRAIN_ISA_NS {
namespace {

template <typename From, typename To>
void encode_scaled(const From* __restrict from, float scale, To* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = encode<To>(load_as_float(from + i) * scale);
  }
}

template <typename From>
void decode_scaled(const From* __restrict from, float scale, float* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = decode(from[i]) * scale;
  }
}

template <typename From>
void decode_plain(const From* __restrict from, float* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = decode(from[i]);
  }
}

template <typename From>
void decode_to_bf16(const From* __restrict from, bf16* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = widen(from[i]);
  }
}

constexpr BulkKernels kTable = {
    .f32_to_bf16 = encode_scaled<float, bf16>,
    .f32_to_f16 = encode_scaled<float, f16>,
    .f32_to_e4m3 = encode_scaled<float, e4m3>,
    .f32_to_e5m2 = encode_scaled<float, e5m2>,
    .bf16_to_e4m3 = encode_scaled<bf16, e4m3>,
    .bf16_to_e5m2 = encode_scaled<bf16, e5m2>,
    .bf16_to_f32_scaled = decode_scaled<bf16>,
    .f16_to_f32_scaled = decode_scaled<f16>,
    .e4m3_to_f32_scaled = decode_scaled<e4m3>,
    .e5m2_to_f32_scaled = decode_scaled<e5m2>,
    .bf16_to_f32 = decode_plain<bf16>,
    .f16_to_f32 = decode_plain<f16>,
    .e4m3_to_f32 = decode_plain<e4m3>,
    .e5m2_to_f32 = decode_plain<e5m2>,
    .e4m3_to_bf16 = decode_to_bf16<e4m3>,
    .e5m2_to_bf16 = decode_to_bf16<e5m2>,
    .i8_to_f32 = decode_plain<int8_t>,
    .i8_to_bf16 = decode_to_bf16<int8_t>,
};

}  // namespace

const BulkKernels& bulk_kernels() {
  return kTable;
}

}  // namespace fp8train::FP8TRAIN_ISA_NS
