#include "ops/gemm/gemm_support.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "ops/cast/block_formats.h"
#include "ops/dispatch/op_table.h"
#include "ops/gemm/gemm_operands_cpu.h"
#include "ops/gemm/planned_gemm.h"
#include "tensor/tensor.h"

namespace fp8train::ops {
namespace {

constexpr int64_t kVector = 16;     // bytes: rows of codes and of the result start at multiples
constexpr size_t kAlignment = 256;  // of the second dequantized operand

// cuBLAS documentation, "Narrow precision data types usage". Scales of 1x128 and 128x128 operands
// are read four at once.
constexpr BlockPair kBlockPairs[] = {
    {per::tensor, per::tensor, DType::f32, ScalePair::tensor, kVector},
    {per::row, per::row, DType::f32, ScalePair::row, kVector},
    {per::block_1x128, per::block_1x128, DType::f32, ScalePair::block_1x128_1x128, kVector, 4},
    {per::block_1x128, per::block_128x128, DType::f32, ScalePair::block_1x128_128x128, kVector, 4},
    {per::block_128x128, per::block_1x128, DType::f32, ScalePair::block_128x128_1x128, kVector, 4},
    {per::block_1x32, per::block_1x32, DType::e8m0, ScalePair::block_1x32, 32},
    {per::block_1x32, per::block_32x32, DType::e8m0, ScalePair::block_1x32, 32},
    {per::block_32x32, per::block_1x32, DType::e8m0, ScalePair::block_1x32, 32},
    {per::block_1x16, per::block_1x16, DType::e4m3, ScalePair::block_1x16, 32},
    {per::block_1x16, per::block_16x16, DType::e4m3, ScalePair::block_1x16, 32},
    {per::block_16x16, per::block_1x16, DType::e4m3, ScalePair::block_1x16, 32}};

static_assert(std::ranges::all_of(kBlockPairs, [](const BlockPair& pair) {
  return pair.mn_multiple == 1 || pair.mn_multiple == 4;
}));

const BlockPair* pair_of(const TensorFormat& a, const TensorFormat& b) {
  const ScaleBlock a_block = read_as(a, b).block;
  const ScaleBlock b_block = read_as(b, a).block;
  const auto* const found = std::ranges::find_if(kBlockPairs, [&](const BlockPair& pair) {
    return pair.a == a_block && pair.b == b_block && pair.scale == dtype_of(a.scale_type) &&
           pair.scale == dtype_of(b.scale_type);
  });
  return found == std::end(kBlockPairs) ? nullptr : found;
}

GemmSupport without(std::string_view reason, const BlockPair& pair) {
  return {.dequantized = pair.scales != ScalePair::tensor,
          .reason = reason,
          .k_multiple = pair.k_multiple};
}

std::string_view why_missing(ScalePair scales) {
  constexpr std::string_view kBlocks = "this GPU has no products with 1x128 and 128x128 scales";
  static constexpr std::string_view kReasons[] = {
      "this GPU has no FP8 products with one scale for each tensor",
      "this GPU has no products with row scales",
      kBlocks,
      kBlocks,
      kBlocks,
      "this GPU has no products with 1x32 scales",
      "this GPU has no products of e2m1"};
  static_assert(std::size(kReasons) == kScalePairs);
  return kReasons[static_cast<size_t>(scales)];
}

/// Why no device multiplies the formats; empty where some does.
std::string_view why_no_product(const GemmFormats& formats, const BlockPair* pair) {
  if (pair == nullptr) {
    return "no product reads these scales together";
  }
  if ((formats.a.dtype == DType::i8) != (formats.b.dtype == DType::i8)) {
    return "int8 is multiplied with int8";
  }
  if (!why_not_multiplied(read_as(formats.a, formats.b)).empty() ||
      !why_not_multiplied(read_as(formats.b, formats.a)).empty()) {
    return "no product reads an operand of this format";
  }
  if (formats.a.hadamard != formats.b.hadamard) {
    return "one operand goes through a Hadamard transform and the other does not";
  }
  return {};
}

/// The rule of the tensor cores or of cuBLASLt that is broken; empty where none is. K fits.
std::string_view broken_rule(const GemmFormats& formats, const GemmExtents& extents,
                             const BlockPair& pair) {
  if (const auto why = why_no_fp8_product(pair.scales, formats.a.dtype, formats.b.dtype);
      !why.empty()) {
    return why;
  }
  if (pair.scales == ScalePair::tensor) {
    return {};  // the library says which extents it refuses
  }
  if (extents.n * static_cast<int64_t>(size_of(formats.c)) % kVector != 0) {
    return "a row of the result is not a multiple of 16 bytes";
  }
  const bool fits = extents.m % pair.mn_multiple == 0 && extents.n % pair.mn_multiple == 0;
  return fits ? "" : "M and N are not multiples of 4";
}

bool suits(Fp8Support support, const GemmExtents& extents) {
  const int64_t multiple = extent_multiple(support);
  return multiple != 0 && extents.m % multiple == 0 && extents.n % multiple == 0 &&
         extents.k % multiple == 0;
}

std::string_view why_not(Fp8Support support, const GemmExtents& extents) {
  if (suits(support, extents)) {
    return "cuBLASLt refuses this shape with these types and scales on this GPU";
  }
  constexpr std::string_view kNone =
      "cuBLASLt does not multiply these types with these scales on this GPU";
  constexpr std::string_view kOf128 =
      "cuBLASLt multiplies these types and scales on this GPU only where M, N and K are multiples "
      "of 128";
  constexpr std::string_view kOf16 =
      "cuBLASLt multiplies these types and scales on this GPU only where M, N and K are multiples "
      "of 16";
  constexpr std::string_view kOf8 =
      "cuBLASLt multiplies these types and scales on this GPU only where M, N and K are multiples "
      "of 8";
  static constexpr std::string_view kReasons[] = {kNone, kOf128, kOf16, kOf8, kNone};
  static_assert(std::size(kReasons) == static_cast<size_t>(Fp8Support::any) + 1);
  return kReasons[static_cast<size_t>(support)];
}

/// Whether the device's table and its library have a product. Where only the short accumulator is
/// missing, the product runs without it.
GemmSupport table_support(const DeviceTraits& traits, const GemmFormats& formats,
                          const GemmExtents& extents, const BlockPair& pair) {
  const bool fast = formats.fast_accumulate && has_fast_accumulation(pair.scales);
  const bool known = extents.m > 0 && extents.n > 0 && extents.k > 0;
  const auto product = [&](bool fast_accumulate) {
    return Fp8Product{pair.scales, formats.a.dtype, formats.b.dtype, formats.c, fast_accumulate};
  };
  const auto has = [&](bool fast_accumulate) {
    return suits(traits.fp8_products.support(product(fast_accumulate)), extents) &&
           (!known || traits.fp8_library == nullptr ||
            traits.fp8_library->takes(product(fast_accumulate), extents.m, extents.n, extents.k));
  };
  for (const bool fast_accumulate : {true, false}) {
    if ((fast || !fast_accumulate) && has(fast_accumulate)) {
      return {.native = true, .fast_accumulate = fast_accumulate, .k_multiple = pair.k_multiple};
    }
  }
  const Fp8Support best = std::max(traits.fp8_products.support(product(fast)),
                                   traits.fp8_products.support(product(false)));
  GemmSupport support = without(why_not(best, extents), pair);
  support.dequantized |= best != Fp8Support::none;
  return support;
}

/// gemm_support() without padding.
GemmSupport support_of(const DeviceTraits& traits, const GemmFormats& formats,
                       const GemmExtents& extents) {
  if (!formats.a.is_scaled() && !formats.b.is_scaled()) {
    return {.native = true, .fast_accumulate = formats.fast_accumulate};
  }
  if (!formats.a.is_scaled() || !formats.b.is_scaled()) {
    return {.dequantized = true,
            .reason = "straight-through: the rounded values, with an operand that is not"};
  }
  const BlockPair* const pair = pair_of(formats.a, formats.b);
  if (const std::string_view reason = why_no_product(formats, pair); !reason.empty()) {
    return {.reason = reason};
  }
  if (!traits.fp8_gemm_by_library) {
    return {.native = true,
            .fast_accumulate = formats.fast_accumulate && has_fast_accumulation(pair->scales),
            .k_multiple = pair->k_multiple};
  }
  if (formats.a.dtype == DType::i8) {
    return without("int8 codes are multiplied as the values that they stand for", *pair);
  }
  if (formats.a.row_scaled || formats.b.row_scaled) {
    return without("cuBLASLt reads one scale above those of blocks, not one for each row", *pair);
  }
  if (!traits.fp8_products.has(pair->scales)) {
    return without(why_missing(pair->scales), *pair);
  }
  if (const std::string_view broken = broken_rule(formats, extents, *pair); !broken.empty()) {
    return without(broken, *pair);
  }
  return table_support(traits, formats, extents, *pair);
}

GemmFormats formats_of(const Gemm& call) {
  const auto format = [](const GemmOperand& operand) {
    if (operand.has_blocks()) {
      return operand.tensor.format;
    }
    TensorFormat by_tensor = plain(operand.matrix().dtype);
    by_tensor.policy = is_code_type(by_tensor.dtype) ? ScalePolicy::current : ScalePolicy::none;
    return by_tensor;
  };
  return {format(call.a), format(call.b), call.c.dtype, call.fast_accumulate};
}

/// Returns the size of both operands with `k` in place of their K, the second one aligned.
size_t padded_bytes(const Gemm& call, int64_t k) {
  const auto [a, b] = padded_shapes(call, k);
  return round_up(storage_bytes(call.a.matrix().dtype, a), kAlignment) +
         storage_bytes(call.b.matrix().dtype, b);
}

/// Returns the size of an operand once it is dequantized to a type of 16 bits.
size_t dequantized_bytes(const GemmOperand& operand) {
  return static_cast<size_t>(operand.matrix().count()) * size_of(DType::bf16);
}

}  // namespace

std::span<const BlockPair> block_pairs() {
  return kBlockPairs;
}

std::string block_pairs_text() {
  std::string text;
  const BlockPair* last = nullptr;
  for (const BlockPair& pair : kBlockPairs) {
    const std::string b = name_of(pair.b);
    if (last != nullptr && last->a == pair.a) {
      text += " or " + b;
    } else {
      text += (text.empty() ? "" : ", ") + name_of(pair.a) + " with " + b;
    }
    last = &pair;
  }
  return text;
}

TensorFormat read_as(TensorFormat format, const TensorFormat& other) {
  if (format.block == per::tensor && other.block == per::row) {
    format.block = per::row;
  }
  return format;
}

GemmSupport gemm_support(const DeviceTraits& traits, const GemmFormats& formats,
                         const GemmExtents& extents) {
  const int64_t multiple = support_of(traits, formats, {}).k_multiple;
  const int64_t k = round_up(extents.k, multiple);
  GemmSupport support = support_of(traits, formats, {extents.m, extents.n, k});
  const bool pads = support.native && traits.fp8_gemm_by_library && k != extents.k;
  support.padded_k = pads ? k : 0;
  return support;
}

GemmSupport gemm_support(const DeviceTraits& traits, const Gemm& call) {
  const GemmSupport support =
      gemm_support(traits, formats_of(call), {call.c.shape[0], call.c.shape[1], call.depth()});
  const auto fits = [](const GemmOperand& operand) {
    return !operand.has_blocks() || operand.tensor.format.block == per::row ||
           operand.tensor.layout == ScaleLayout::cublaslt;
  };
  if (support.native && traits.fp8_gemm_by_library && (!fits(call.a) || !fits(call.b))) {
    return {.dequantized = true, .reason = "the scales are not laid out for cuBLASLt"};
  }
  return support;
}

size_t gemm_scratch_bytes(const DeviceTraits& traits, const Gemm& call) {
  if (!traits.fp8_gemm_by_library) {
    return cpu::gemm_workspace_bytes(call);
  }
  const GemmFormats formats = formats_of(call);
  const bool scaled = formats.a.is_scaled() && formats.b.is_scaled();
  const GemmSupport support = scaled ? gemm_support(traits, call) : GemmSupport{};
  return support.padded_k != 0 ? padded_bytes(call, support.padded_k)
         : support.dequantized ? dequantized_scratch_bytes(call)
                               : 0;
}

Gemm with_scratch(const Device& device, Arena& arena, Gemm call) {
  const size_t bytes = gemm_scratch_bytes(device.traits(), call);
  if (arena.has(bytes)) {
    call.scratch = allocate(arena, DType::u8, {static_cast<int64_t>(bytes)});
  }
  return call;
}

void planned_gemm(Stream stream, const Device& device, Arena& arena, const Gemm& call) {
  const ArenaScope scope(arena);
  gemm(stream, with_scratch(device, arena, call));
}

void pack_planned(Stream stream, Arena& arena, const GemmOperand& b, View packed) {
  const ArenaScope scope(arena);
  const size_t bytes = pack_scratch_bytes(b);
  pack_operand(
      stream, b, packed,
      arena.has(bytes) ? allocate(arena, DType::u8, {static_cast<int64_t>(bytes)}) : View{});
}

std::pair<Shape, Shape> padded_shapes(const Gemm& call, int64_t k) {
  return {{call.c.shape[0], k}, {call.c.shape[1], k}};
}

size_t dequantized_scratch_bytes(const Gemm& call) {
  return round_up(dequantized_bytes(call.a), kAlignment) + dequantized_bytes(call.b);
}

bool probe_gemms(Device& device, const Fp8Products* known) {
  if (known != nullptr) {
    DeviceTraits traits = device.traits();
    traits.fp8_products = *known;
    device.set_traits(traits);
  }
  return dispatch<&OpTable::probe_gemms>(device, known);
}

}  // namespace fp8train::ops
