#pragma once
// The element types that tensors hold, and their 16- and 8-bit storage structs. Conversions are in
// numeric/convert.h.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>

namespace fp8train {

enum class DType : uint8_t { f32, bf16, f16, e4m3, e5m2, e2m1, e8m0, i8, u8, u16, i32, i64, f64 };

constexpr float kMaxE4M3 = 448.0F;
constexpr float kMaxE5M2 = 57344.0F;
constexpr float kMaxE2M1 = 6.0F;
constexpr float kMaxF16 = 65504.0F;

/// The uses of an element type: bits of DTypeFacts::uses. Lists of C++ types by their use are
/// in numeric/with_type.h.
namespace use {
constexpr unsigned arithmetic = 1;  ///< activations and gradients may be held in it
constexpr unsigned code = 2;  ///< written by casts with scales, and means nothing without them
constexpr unsigned fp8 = 4 | code;   ///< a code of one byte that is a floating-point number
constexpr unsigned stored = 8;       ///< of stored tensors (tensor/encoded.h)
constexpr unsigned wire = 16;        ///< of packets between ranks, as it is (ops/exchange/wire.h)
constexpr unsigned group_wire = 32;  ///< of packets with a scale for each group
constexpr unsigned integer = 64;     ///< a whole number
}  // namespace use

/// The facts about an element type.
struct DTypeFacts {
  DType type;
  std::string_view name;
  int bits;
  std::string_view safetensors = {};  ///< its name in safetensors files; empty: they have none
  unsigned uses = 0;
  /// Largest finite magnitude, which an amax is scaled to; 1 for types that have no scale or need
  /// none.
  float max = 1.0F;
  /// Magnitude above which a saturating cast clips a value rather than rounds it to the maximum:
  /// the maximum plus half of the spacing of codes there; 0 where no cast saturates.
  float clips_above = 0.0F;

  /// Whether the type has all of these uses.
  constexpr bool has(unsigned all) const { return (uses & all) == all; }
};

/// The one table, in the order of DType.
inline constexpr DTypeFacts kDTypes[] = {
    {DType::f32, "fp32", 32, "F32", use::arithmetic | use::stored | use::wire},
    {DType::bf16, "bf16", 16, "BF16", use::arithmetic | use::stored | use::wire},
    {DType::f16, "fp16", 16, "F16", use::arithmetic | use::stored, kMaxF16},
    {DType::e4m3, "e4m3", 8, "F8_E4M3", use::fp8 | use::stored | use::group_wire, kMaxE4M3, 464.0F},
    {DType::e5m2, "e5m2", 8, "F8_E5M2", use::fp8 | use::stored | use::group_wire, kMaxE5M2,
     61440.0F},
    {DType::e2m1, "e2m1", 4, {}, use::code, kMaxE2M1, 7.0F},
    {DType::e8m0, "e8m0", 8, "F8_E8M0"},
    {DType::i8, "int8", 8, "I8", use::code | use::group_wire | use::integer, 127.0F, 127.5F},
    {DType::u8, "uint8", 8, "U8"},
    {DType::u16, "uint16", 16, "U16"},
    {DType::i32, "int32", 32, "I32"},
    {DType::i64, "int64", 64, "I64"},
    {DType::f64, "fp64", 64},
};

constexpr const DTypeFacts& facts_of(DType type) {
  return kDTypes[static_cast<size_t>(type)];
}

static_assert([] {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (kDTypes[i].type != static_cast<DType>(i)) {
      return false;
    }
  }
  return true;
}());

/// Throw InternalError: size_of() has no answer, or no kernel is compiled for the type.
[[noreturn]] void throw_no_size_of(DType type);
[[noreturn]] void throw_no_kernel_for(DType type);

/// Host. Bytes of one element. Throws InternalError for types of less than a byte, which
/// bytes_of_rows() is for; in a constant expression they do not compile.
constexpr size_t size_of(DType type) {
  const auto bits = static_cast<size_t>(facts_of(type).bits);
  return bits % 8 == 0 ? bits / 8 : (throw_no_size_of(type), 0);
}

/// Bytes of `rows` rows of `columns` elements; each row begins with a byte of its own. Of two codes
/// of four bits in a byte the first is the lower one.
constexpr size_t bytes_of_rows(DType type, int64_t rows, int64_t columns) {
  return static_cast<size_t>(rows) *
         ((static_cast<size_t>(columns) * static_cast<size_t>(facts_of(type).bits) + 7) / 8);
}

/// Whether activations and gradients may be held in the type: fp32, bf16 or fp16.
constexpr bool is_float_type(DType type) {
  return facts_of(type).has(use::arithmetic);
}

constexpr bool is_fp8(DType type) {
  return facts_of(type).has(use::fp8);
}

/// Whether a cast with scales writes the type: the FP8 formats, e2m1 and int8.
constexpr bool is_code_type(DType type) {
  return facts_of(type).has(use::code);
}

/// Whether the type is a code of one byte: the FP8 formats and int8.
constexpr bool is_byte_code(DType type) {
  return is_code_type(type) && facts_of(type).bits == 8;
}

/// Whether a role of a plan may have the type: numbers, and codes with their scales.
constexpr bool is_role_type(DType type) {
  return is_float_type(type) || is_code_type(type);
}

/// Whether a stored tensor may have the type, with or without scales (tensor/encoded.h).
constexpr bool is_stored_type(DType type) {
  return facts_of(type).has(use::stored);
}

/// Whether values cross between ranks in the type as they are, and whether with a scale for each
/// group.
constexpr bool is_plain_wire_type(DType type) {
  return facts_of(type).has(use::wire);
}
constexpr bool is_wire_code(DType type) {
  return facts_of(type).has(use::group_wire);
}

/// "fp32", "bf16", "fp16", "e4m3", "e5m2", "e8m0", "int8", ...: the spelling of the table of plans
/// and of `explain`.
constexpr std::string_view name_of(DType type) {
  return facts_of(type).name;
}

/// The largest value of the format, to which an amax is scaled.
constexpr float format_max(DType type) {
  return facts_of(type).max;
}

/// The magnitude above which a saturating cast to codes clips.
constexpr float saturation_threshold(DType type) {
  return facts_of(type).clips_above;
}

// Storage only: `bits` is the encoding. BF16: 1-8-7. FP16: IEEE 1-5-10. E4M3 (fn: no infinity, one
// NaN per sign, maximum 448): 1-4-3, bias 7. E5M2: IEEE-like 1-5-2, bias 15, maximum 57344. E2M1
// (no infinity, no NaN, maximum 6): 1-2-1, bias 1, in the lower half of a byte here. E8M0:
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
struct e2m1 {
  uint8_t bits;
};
struct e8m0 {
  uint8_t bits;
};

/// A list of C++ element types (numeric/with_type.h).
template <typename... Types>
struct TypeList;
/// One for each line of kDTypes, in its order, which tests/numeric/with_type_test.cpp compares.
using AllTypes = TypeList<float, bf16, f16, e4m3, e5m2, e2m1, e8m0, int8_t, uint8_t, uint16_t,
                          int32_t, int64_t, double>;

namespace detail {
template <typename T, typename... Types>
constexpr DType type_in(const TypeList<Types...>* /*all*/) {
  static_assert(sizeof...(Types) == std::size(kDTypes));
  static_assert((std::is_same_v<T, Types> || ...), "tensors do not hold this type");
  size_t index = 0;
  (void)((std::is_same_v<T, Types> || (++index, false)) || ...);
  return kDTypes[index].type;
}
}  // namespace detail

/// The DType of a C++ element type, for code of kernels too.
template <typename T>
inline constexpr DType kTypeOf = detail::type_in<T>(static_cast<const AllTypes*>(nullptr));
template <typename T>
constexpr DType dtype_of() {
  return kTypeOf<T>;
}

}  // namespace fp8train
