#pragma once
// The element types that tensors hold, and their 16- and 8-bit storage structs. Conversions are in
// numeric/convert.h.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fp8train {

enum class DType : uint8_t { f32, bf16, f16, e4m3, e5m2, e8m0, i8, u8, u16, i32, i64, f64 };

/// Bytes of one element.
constexpr size_t size_of(DType type) {
  switch (type) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::i64:
    case DType::f64:
      return 8;
    case DType::e4m3:
    case DType::e5m2:
    case DType::e8m0:
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr bool is_fp8(DType type) {
  return type == DType::e4m3 || type == DType::e5m2;
}

/// What a cast with scales writes: the FP8 formats and int8.
constexpr bool is_code_type(DType type) {
  return is_fp8(type) || type == DType::i8;
}

/// "fp32", "bf16", "fp16", "e4m3", "e5m2", "e8m0", "int8", ...: the spelling of the table of plans
/// and of `explain`.
std::string_view name_of(DType type);

// Storage only: `bits` is the encoding. BF16: 1-8-7. FP16: IEEE 1-5-10. E4M3 (fn: no infinity, one
// NaN per sign, maximum 448): 1-4-3, bias 7. E5M2: IEEE-like 1-5-2, bias 15, maximum 57344. E8M0:
// 2^(bits-127), 0xFF is NaN.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
struct e8m0 {
  uint8_t bits;
};

constexpr float kMaxE4M3 = 448.0F;
constexpr float kMaxE5M2 = 57344.0F;
constexpr float kMaxF16 = 65504.0F;

/// Largest finite magnitude of an FP8, FP16 or INT8 format: what an amax is scaled to.
constexpr float format_max(DType type) {
  switch (type) {
    case DType::e4m3:
      return kMaxE4M3;
    case DType::e5m2:
      return kMaxE5M2;
    case DType::f16:
      return kMaxF16;
    case DType::i8:
      return 127.0F;
    default:
      return 1.0F;
  }
}

/// Magnitude above which a value is clipped by a saturating cast to FP8 or INT8 rather than rounded
/// to the maximum: the maximum plus half of the spacing of codes there.
constexpr float saturation_threshold(DType type) {
  return type == DType::e4m3 ? 464.0F : type == DType::i8 ? 127.5F : 61440.0F;
}

/// The DType of a C++ element type.
template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<f16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<e4m3>() {
  return DType::e4m3;
}
template <>
constexpr DType dtype_of<e5m2>() {
  return DType::e5m2;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::i8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::u16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}

}  // namespace fp8train
