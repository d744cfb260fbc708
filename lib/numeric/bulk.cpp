#include "numeric/bulk.h"

#include "numeric/isa_tables.h"

namespace fp8train {

FP8TRAIN_ISA_TABLES(BulkKernels, bulk_kernels)

namespace {

const BulkKernels& kernels() {
  static const BulkKernels& best = best_of(bulk_kernels_tables());
  return best;
}

}  // namespace

const BulkKernels* bulk_kernels_at(CpuIsa isa) {
  return bulk_kernels_tables().at(isa);
}

void encode(const float* from, float scale, bf16* to, size_t count) {
  kernels().f32_to_bf16(from, scale, to, count);
}
void encode(const float* from, float scale, f16* to, size_t count) {
  kernels().f32_to_f16(from, scale, to, count);
}
void encode(const float* from, float scale, e4m3* to, size_t count) {
  kernels().f32_to_e4m3(from, scale, to, count);
}
void encode(const float* from, float scale, e5m2* to, size_t count) {
  kernels().f32_to_e5m2(from, scale, to, count);
}
void encode(const bf16* from, float scale, e4m3* to, size_t count) {
  kernels().bf16_to_e4m3(from, scale, to, count);
}
void encode(const bf16* from, float scale, e5m2* to, size_t count) {
  kernels().bf16_to_e5m2(from, scale, to, count);
}

void decode(const bf16* from, float* to, size_t count) {
  kernels().bf16_to_f32(from, to, count);
}
void decode(const f16* from, float* to, size_t count) {
  kernels().f16_to_f32(from, to, count);
}
void decode(const e4m3* from, float* to, size_t count) {
  kernels().e4m3_to_f32(from, to, count);
}
void decode(const e5m2* from, float* to, size_t count) {
  kernels().e5m2_to_f32(from, to, count);
}
void decode(const e4m3* from, bf16* to, size_t count) {
  kernels().e4m3_to_bf16(from, to, count);
}
void decode(const e5m2* from, bf16* to, size_t count) {
  kernels().e5m2_to_bf16(from, to, count);
}
void decode(const int8_t* from, float* to, size_t count) {
  kernels().i8_to_f32(from, to, count);
}
void decode(const int8_t* from, bf16* to, size_t count) {
  kernels().i8_to_bf16(from, to, count);
}

void decode(const bf16* from, float scale, float* to, size_t count) {
  kernels().bf16_to_f32_scaled(from, scale, to, count);
}
void decode(const f16* from, float scale, float* to, size_t count) {
  kernels().f16_to_f32_scaled(from, scale, to, count);
}
void decode(const e4m3* from, float scale, float* to, size_t count) {
  kernels().e4m3_to_f32_scaled(from, scale, to, count);
}
void decode(const e5m2* from, float scale, float* to, size_t count) {
  kernels().e5m2_to_f32_scaled(from, scale, to, count);
}

}  // namespace fp8train
