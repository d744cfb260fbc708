#pragma once
// Flat tensors of any format, decoded into fp32 and encoded again in pieces that stay in a thread's
// L1 cache. Only for files compiled by fp8train_isa_sources.

#include "base/math.h"
#include "ops/cast/quantize_support_cpu.h"
#include "ops/storage/storage_math.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

/// Elements of a piece: whole groups of any format.
constexpr int64_t kStoredPiece = 1024;
static_assert(kStoredPiece % kStoredBlock.columns == 0 && kChunk % kStoredPiece == 0);

/// The types of codes: of stored tensors and of packets.
constexpr bool is_encoded_type(DType type) {
  return is_stored_type(type) || is_wire_code(type);
}
using EncodedTypes = TypesThat<is_encoded_type>;

/// A tensor without scales that is only read.
FP8TRAIN_HD Encoded read_only(const ConstView& values) {
  return View{const_cast<void*>(values.data), values.dtype, values.shape};
}

/// Whether there is one scale for the whole tensor.
FP8TRAIN_HD bool has_tensor_scale(const Encoded& tensor) {
  return codec_of(tensor.format) == Codec::tensor;
}
/// The index of the group that element `at` is in.
FP8TRAIN_HD int64_t group_of(const Encoded& tensor, int64_t at) {
  return at / tensor.format.block.columns;
}

/// body(at, length) for the runs of a piece that share a scale.
template <typename Body>
FP8TRAIN_HD void for_each_run(const Encoded& tensor, int64_t length, Body body) {
  const int64_t run = tensor.format.block.is_group() ? tensor.format.block.columns : length;
  for (int64_t at = 0; at < length; at += run) {
    body(at, minimum(run, length - at));
  }
}

/// The expansion of the group that element `at` is in.
FP8TRAIN_HD ScaleExpansion& expansion_at(const Encoded& tensor, int64_t at) {
  return tensor.scales.as<ScaleExpansion>()[group_of(tensor, at)];
}

/// The factor of the code of element `at`. `tensor_scale`: of a tensor that has one scale.
FP8TRAIN_HD float factor_at(const Encoded& tensor, int64_t at, float tensor_scale) {
  switch (codec_of(tensor.format)) {
    case Codec::groups:
      return reciprocal(
          read_scale(tensor.scales.data, tensor.scales.dtype == DType::u8, group_of(tensor, at)));
    case Codec::divided:
      return decode(tensor.scales.as<bf16>()[group_of(tensor, at)]);
    case Codec::expanded:
      return 1.0F;
    default:
      return reciprocal(tensor_scale);
  }
}

/// values = codes * factor.
template <typename Code>
FP8TRAIN_HD void decode_run(const Code* __restrict codes, float factor, float* __restrict values,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = decode(codes[i]) * factor;
  }
}

/// Takes the expansion of a group back, in place.
FP8TRAIN_HD void contract_run(const ScaleExpansion& expansion, float* values, int64_t count) {
  const float inverse_exponent = reciprocal(expansion.exponent);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = contract(values[i], expansion, inverse_exponent);
  }
}

/// Reads elements begin .. begin + length - 1 of a tensor in two halves.
FP8TRAIN_HD void join_run(const Encoded& tensor, int64_t begin, int64_t length,
                          float* __restrict values) {
  const auto* upper = tensor.codes.as<uint16_t>() + begin;
  const auto* lower = tensor.scales.as<uint16_t>() + begin;
  for (int64_t i = 0; i < length; ++i) {
    values[i] = join_master(upper[i], lower[i]);
  }
}

/// Writes elements begin .. begin + length - 1 of a tensor in two halves.
FP8TRAIN_HD void split_run(const Encoded& tensor, int64_t begin, int64_t length,
                           const float* __restrict values) {
  auto* __restrict upper = tensor.codes.as<uint16_t>() + begin;
  auto* __restrict lower = tensor.scales.as<uint16_t>() + begin;
  for (int64_t i = 0; i < length; ++i) {
    const MasterHalves halves = split_master(values[i]);
    upper[i] = halves.upper;
    lower[i] = halves.lower;
  }
}

/// Reads elements begin .. begin + length - 1 of a tensor whose groups have scales of two levels.
template <typename Scales>
FP8TRAIN_HD void load_blocks(const Encoded& tensor, int64_t begin, int64_t length,
                             float* __restrict values) {
  const auto* codes = tensor.codes.as<uint8_t>() + begin / 2;
  for (int64_t at = 0; at < length; at += Scales::kBlock) {
    const Scales& scales = tensor.scales.as<Scales>()[(begin + at) / Scales::kGroup];
    const int64_t block = (begin + at) % Scales::kGroup / Scales::kBlock;
    const float factor = decode(scales.blocks[block]) * decode(scales.above);
    const int64_t end = minimum(length, at + Scales::kBlock);
    for (int64_t i = at; i < end; ++i) {
      const auto code = static_cast<uint8_t>(codes[i / 2] >> (4 * (i % 2)) & 0xF);
      values[i] = two_level_value(code, factor);
    }
  }
}

/// The values of elements begin .. begin + length - 1, where `begin` is a multiple of the group.
/// `tensor_scale`: of a tensor that has one scale.
FP8TRAIN_HD void load_run(const Encoded& tensor, int64_t begin, int64_t length, float tensor_scale,
                          float* values) {
  const Codec codec = codec_of(tensor.format);
  if (codec == Codec::halves) {
    return join_run(tensor, begin, length, values);
  }
  if (codec == Codec::two_level) {
    return AllGroupScales::with(tensor.format.block.columns, [&]<typename Scales>(Scales) {
      load_blocks<Scales>(tensor, begin, length, values);
    });
  }
  EncodedTypes::with(tensor.codes.dtype, [&](auto tag) {
    const auto* codes = tensor.codes.as<typename decltype(tag)::Type>() + begin;
    for_each_run(tensor, length, [&](int64_t at, int64_t count) {
      decode_run(codes + at, factor_at(tensor, begin + at, tensor_scale), values + at, count);
      if (codec == Codec::expanded) {
        contract_run(expansion_at(tensor, begin + at), values + at, count);
      }
    });
  });
}
FP8TRAIN_HD void load_run(const Encoded& tensor, int64_t begin, int64_t length, float* values) {
  const float scale = has_tensor_scale(tensor) ? *tensor.scales.as<float>() : 1.0F;
  load_run(tensor, begin, length, scale, values);
}

/// The random bits of elements begin .. begin + length - 1, with space up to a multiple of four.
FP8TRAIN_HD void draw_run(const RoundingDraw& draw, int64_t begin, int64_t length,
                          uint32_t* __restrict random) {
  for (int64_t block = 0; block < ceil_div(length, 4); ++block) {
    const PhiloxBlock bits = draw.block(begin / 4 + block);
    random[4 * block] = bits.word[0];
    random[4 * block + 1] = bits.word[1];
    random[4 * block + 2] = bits.word[2];
    random[4 * block + 3] = bits.word[3];
  }
}

/// codes = cast(values * scale), nearest-even or by random bits; `floored` as in NewValues.
template <typename Code>
FP8TRAIN_HD void encode_run(const float* __restrict values, float scale,
                            const uint8_t* __restrict floored, Code* __restrict codes,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = floor_code(encode<Code>(values[i] * scale), floored[i] != 0);
  }
}
template <typename Code>
FP8TRAIN_HD void encode_run(const float* __restrict values, float scale,
                            const uint32_t* __restrict random, const uint8_t* __restrict floored,
                            Code* __restrict codes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = floor_code(encode_stochastic<Code>(values[i] * scale, random[i]), floored[i] != 0);
  }
}

/// Encodes a group with a scale that codes are read with, and stores it.
FP8TRAIN_HD void divide_run(const float* __restrict values, bf16& scale, e4m3* __restrict codes,
                            int64_t count) {
  const bf16 fresh = divided_scale(float_of(largest_magnitude(values, count)));
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = divided_code(values[i], fresh);
  }
  scale = fresh;
}

/// The smallest magnitude that is not zero, 0 where there is none; NaN counts as beyond infinity.
FP8TRAIN_HD float smallest_magnitude(const float* __restrict values, int64_t count) {
  uint32_t smallest = 0xFFFFFFFFU;  // less one, so that zeros come last
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = (bits_of(values[i]) & 0x7FFFFFFFU) - 1U;
    smallest = bits < smallest ? bits : smallest;
  }
  return float_of(smallest + 1U);
}

/// The new expansion of a group, and its values as they are encoded.
FP8TRAIN_HD void expand_run(const float* __restrict values, int64_t count,
                            ScaleExpansion& expansion, float* __restrict expanded) {
  const float amax = float_of(largest_magnitude(values, count));
  const ScaleExpansion fresh = stored_expansion(amax, smallest_magnitude(values, count), expansion);
  for (int64_t i = 0; i < count; ++i) {
    expanded[i] = expand(values[i], fresh);
  }
  expansion = fresh;
}

/// The scale that follows from the largest new magnitude (as bits) of a tensor or a group.
FP8TRAIN_HD float new_scale(const Encoded& tensor, uint32_t largest, float old) {
  return stored_scale(float_of(largest), old, format_max(tensor.format.dtype),
                      is_exponent(tensor.format.scale_type));
}

/// Floors nothing.
inline constexpr uint8_t kNoneFloored[kStoredPiece] = {};

/// The values that store_run() encodes.
struct NewValues {
  const float* values;
  float tensor_scale = 1.0F;              ///< the new scale of a tensor that has one
  const uint8_t* floored = kNoneFloored;  ///< not 0: the code of this element must not become zero
  /// Receives 1 for each code that is not zero, unless the tensor is in two halves. May be null.
  uint8_t* present = nullptr;
  RoundingDraw draw = {};  ///< of stochastic rounding
  /// A packet has no older scales: those of groups that are not finite become NaN.
  bool packed = false;
};

/// Finds and stores the scale of elements `at` .. of a group, and returns it. Returns the tensor's
/// where groups have none.
FP8TRAIN_HD float renew_scale(const Encoded& tensor, int64_t at, const float* values, int64_t count,
                              const NewValues& call) {
  if (codec_of(tensor.format) != Codec::groups) {
    return call.tensor_scale;
  }
  const bool as_byte = tensor.scales.dtype == DType::u8;
  const int64_t group = group_of(tensor, at);
  const float old = call.packed ? quiet_nan() : read_scale(tensor.scales.data, as_byte, group);
  const float scale = new_scale(tensor, largest_magnitude(values, count), old);
  write_scale(tensor.scales.data, as_byte, group, scale);
  return scale;
}

/// Encodes elements `at` .. of a block under factor_of() its group, and returns the block's scale.
/// `codes`: of the first of them; `random`: null: to nearest even.
template <typename Scales>
FP8TRAIN_HD e4m3 store_block(const NewValues& call, int64_t at, int64_t count, float above,
                             const uint32_t* random, uint8_t* __restrict codes) {
  const float* const values = call.values + at;
  const uint8_t* const floored = call.floored + at;
  unsigned floors = 0;
  for (int64_t i = 0; i < count; ++i) {
    floors |= floored[i];
  }
  const e4m3 scale = new_block_scale(float_of(largest_magnitude(values, count)), above, floors != 0,
                                     random != nullptr);
  const float factor = two_level_factor(scale, above);
  uint8_t found[Scales::kBlock] = {};
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = values[i] * factor;
    found[i] = two_level_code(
        random == nullptr ? encode<e2m1>(scaled) : encode_stochastic<e2m1>(scaled, random[at + i]),
        floored[i] != 0);
  }
  for (int64_t i = 0; i < count; i += 2) {
    codes[i / 2] = static_cast<uint8_t>(found[i] | found[i + 1] << 4);
  }
  for (int64_t i = 0; call.present != nullptr && i < count; ++i) {
    call.present[at + i] = (found[i] & 7U) != 0 && scale.bits != 0 ? 1 : 0;
  }
  return scale;
}

/// Encodes elements begin .. begin + length - 1 in groups with scales of two levels. A group with a
/// value that is not finite is NaN.
template <typename Scales>
FP8TRAIN_HD void store_blocks(const Encoded& tensor, int64_t begin, int64_t length,
                              const uint32_t* random, const NewValues& call) {
  auto* const codes = tensor.codes.as<uint8_t>() + begin / 2;
  for_each_run(tensor, length, [&](int64_t at, int64_t count) {
    const float amax = finite_or_nan(float_of(largest_magnitude(call.values + at, count)));
    const float factor = Scales::factor_of(amax);
    Scales scales = {encode<decltype(Scales::above)>(Scales::above_of(amax))};
    for (int64_t block = 0; block < count; block += Scales::kBlock) {
      const int64_t first = at + block;
      scales.blocks[block / Scales::kBlock] =
          store_block<Scales>(call, first, minimum(int64_t{Scales::kBlock}, count - block), factor,
                              random, codes + first / 2);
    }
    tensor.scales.as<Scales>()[group_of(tensor, begin + at)] = scales;
  });
}

/// Encodes elements begin .. begin + length - 1, at most a piece, where `begin` is a multiple of
/// the group. Scales of groups follow from the values.
FP8TRAIN_HD void store_run(const Encoded& tensor, int64_t begin, int64_t length,
                           const NewValues& call) {
  const Codec codec = codec_of(tensor.format);
  if (codec == Codec::halves) {  // has no twin that is floored
    return split_run(tensor, begin, length, call.values);
  }
  if (codec == Codec::divided) {
    return for_each_run(tensor, length, [&](int64_t at, int64_t count) {
      divide_run(call.values + at, tensor.scales.as<bf16>()[group_of(tensor, begin + at)],
                 tensor.codes.as<e4m3>() + begin + at, count);
    });
  }
  const bool stochastic = tensor.format.rounding == Rounding::stochastic;
  uint32_t random[kStoredPiece];
  if (stochastic) {
    draw_run(call.draw, begin, length, random);
  }
  if (codec == Codec::two_level) {
    return AllGroupScales::with(tensor.format.block.columns, [&]<typename Scales>(Scales) {
      store_blocks<Scales>(tensor, begin, length, stochastic ? random : nullptr, call);
    });
  }
  EncodedTypes::with(tensor.codes.dtype, [&](auto tag) {
    auto* codes = tensor.codes.as<typename decltype(tag)::Type>() + begin;
    for_each_run(tensor, length, [&](int64_t at, int64_t count) {
      const float* from = call.values + at;
      float expanded[kStoredBlock.columns];
      float scale = 1.0F;
      if (codec == Codec::expanded) {
        expand_run(from, count, expansion_at(tensor, begin + at), expanded);
        from = expanded;
      } else {
        scale = renew_scale(tensor, begin + at, from, count, call);
      }
      if (stochastic) {
        encode_run(from, scale, random + at, call.floored + at, codes + at, count);
      } else {
        encode_run(from, scale, call.floored + at, codes + at, count);
      }
    });
    for (int64_t i = 0; call.present != nullptr && i < length; ++i) {
      call.present[i] = is_zero_code(codes[i]) ? 0 : 1;
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
