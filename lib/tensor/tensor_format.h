#pragma once
// A TensorFormat is the format of one role: element format x block of elements that share a scale x
// scale policy x scale type x rounding. Pure data.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "numeric/dtype.h"

namespace fp8train {

/// The elements that share a scale: `rows` x `columns` of a matrix; 0 columns are all of a row.
/// With 0 rows the tensor counts as one row of elements in the order of memory.
struct ScaleBlock {
  int32_t rows = 0, columns = 0;

  /// Whether the block is consecutive elements of the tensor, whatever its shape.
  constexpr bool is_group() const { return rows == 0 && columns > 0; }
  /// Whether the blocks of a matrix are those of its transpose too.
  constexpr bool is_square() const { return rows > 1 && rows == columns; }
  /// Returns the block for which a scale is stored: each row of a square of 16 or 32 has the
  /// square's, as tensor cores read it.
  constexpr ScaleBlock as_stored() const {
    const bool by_row = is_square() && (rows == 16 || rows == 32);
    return by_row ? ScaleBlock{1, columns} : *this;
  }
  constexpr auto operator<=>(const ScaleBlock&) const = default;
};

/// Names for blocks, as in format.block == per::row.
namespace per {
constexpr ScaleBlock tensor = {0, 0};
constexpr ScaleBlock row = {1, 0};
constexpr ScaleBlock block_1x128 = {1, 128};
constexpr ScaleBlock block_128x128 = {128, 128};
constexpr ScaleBlock block_1x32 = {1, 32};
constexpr ScaleBlock block_32x32 = {32, 32};
constexpr ScaleBlock block_1x16 = {1, 16};
constexpr ScaleBlock block_16x16 = {16, 16};
/// Returns the block of `elements` consecutive elements.
constexpr ScaleBlock group(int32_t elements) {
  return {0, elements};
}
/// The blocks that formats in use have, for messages.
inline constexpr ScaleBlock kInUse[] = {tensor,        row,         block_1x128,
                                        block_128x128, block_1x32,  block_32x32,
                                        block_1x16,    block_16x16, group(128)};
}  // namespace per

enum class ScalePolicy : uint8_t { none, current, delayed, fixed, automatic };
inline constexpr std::pair<ScalePolicy, std::string_view> kScalePolicies[] = {
    {ScalePolicy::none, "none"},
    {ScalePolicy::current, "current"},
    {ScalePolicy::delayed, "delayed"},
    {ScalePolicy::fixed, "static"},
    {ScalePolicy::automatic, "auto"}};

enum class ScaleType : uint8_t {
  f32,
  pow2,
  e8m0,
  e4m3,                 ///< under an fp32 scale of the tensor (NVFP4)
  e8m0_floor,           ///< e8m0 is rounded up, this one down,
  e8m0_even,            ///< and this one down after amax is rounded (numeric/scale.h)
  e4m3_4over6,          ///< e4m3 of two candidates, by the sum of errors,
  e4m3_4over6_mse,      ///< or of their squares;
  e4m3_4over6_448,      ///< these two under a scale of the tensor that
  e4m3_4over6_448_mse,  ///< is not lowered for the larger candidate
};
/// The facts about a type of scale.
struct ScaleTypeFacts {
  ScaleType type;
  std::string_view name;
  DType dtype;         ///< in which scales are held
  bool exact_in_bf16;  ///< a code times its scale is a number of bf16
  bool two_level;      ///< scales of blocks lie under an fp32 scale of the tensor
  int packet_bytes;    ///< bytes of a scale in a packet: 1 is an exponent, 0: no packet has any
  float largest = kMaxE4M3;    ///< two_level: the scale of the block with the largest magnitude
  bool four_over_six = false;  ///< two_level: numeric/scale.h,
  bool squared = false;        ///< by the squares of errors
};
/// The one table, in the order of ScaleType.
inline constexpr ScaleTypeFacts kScaleTypeFacts[] = {
    {ScaleType::f32, "fp32", DType::f32, false, false, 4},
    {ScaleType::pow2, "pow2", DType::f32, true, false, 1},
    {ScaleType::e8m0, "e8m0", DType::e8m0, true, false, 0},
    {ScaleType::e4m3, "e4m3", DType::e4m3, true, true, 0},
    {ScaleType::e8m0_floor, "e8m0_floor", DType::e8m0, true, false, 0},
    {ScaleType::e8m0_even, "e8m0_even", DType::e8m0, true, false, 0},
    {ScaleType::e4m3_4over6, "e4m3_4over6", DType::e4m3, true, true, 0, 256.0F, true},
    {ScaleType::e4m3_4over6_mse, "e4m3_4over6_mse", DType::e4m3, true, true, 0, 256.0F, true, true},
    {ScaleType::e4m3_4over6_448, "e4m3_4over6_448", DType::e4m3, true, true, 0, kMaxE4M3, true},
    {ScaleType::e4m3_4over6_448_mse, "e4m3_4over6_448_mse", DType::e4m3, true, true, 0, kMaxE4M3,
     true, true}};
constexpr const ScaleTypeFacts& facts_of(ScaleType type) {
  return kScaleTypeFacts[static_cast<size_t>(type)];
}
static_assert(std::ranges::all_of(kScaleTypeFacts, [](const ScaleTypeFacts& facts) {
  return &facts_of(facts.type) == &facts;
}));
constexpr DType dtype_of(ScaleType type) {
  return facts_of(type).dtype;
}
/// Whether packets have exponents: the scales of codes that may cross are then powers of two.
constexpr bool is_exponent(ScaleType type) {
  return facts_of(type).packet_bytes == 1;
}

enum class Rounding : uint8_t { nearest_even, stochastic };
inline constexpr std::pair<Rounding, std::string_view> kRoundings[] = {
    {Rounding::nearest_even, "nearest"}, {Rounding::stochastic, "stochastic"}};

enum class AmaxAlgorithm : uint8_t { max, most_recent };
inline constexpr std::pair<AmaxAlgorithm, std::string_view> kAmaxAlgorithms[] = {
    {AmaxAlgorithm::max, "max"}, {AmaxAlgorithm::most_recent, "most_recent"}};

/// The values whose amax is an entry of a history.
enum class WindowUnit : uint8_t {
  micro_batch,
  step,  ///< of all micro-batches of an optimizer step
};

/// The ranks whose amax enters a history.
enum class AmaxReduction : uint8_t {
  ranks,  ///< the largest of all ranks, which then have the same scales
  none,   ///< a rank's own
};

/// Parameters of ScalePolicy::delayed (TransformerEngine's DelayedScaling,
/// common/recipe/delayed_scaling.cu, whose history has an entry for each micro-batch and is the
/// same on all ranks unless its `reduce_amax` is false; MS-AMP, msamp/optim/optimizer.py, whose
/// history has one for each optimizer step and is each rank's own).
struct DelayedScaling {
  int margin = 0;             ///< the format's maximum is divided by 2^margin
  int interval = 1;           ///< optimizer steps between scale updates
  int history_length = 1024;  ///< window of amax values
  AmaxAlgorithm algorithm = AmaxAlgorithm::max;
  /// Current scaling until the history is full (MS-AMP, common/tensor/meta.py), and for as many
  /// updates after an amax that is not finite, tensor by tensor (optim/optimizer.py).
  bool current_at_first = false;
  /// With `step` an amax that is 0 or not finite enters the history as 0 (MS-AMP,
  /// msamp/optim/optimizer.py); with `micro_batch` it does not enter.
  WindowUnit unit = WindowUnit::micro_batch;
  AmaxReduction reduction = AmaxReduction::ranks;

  bool operator==(const DelayedScaling&) const = default;
};

/// The format of one role.
struct TensorFormat {
  DType dtype = DType::f32;
  ScaleBlock block;
  ScalePolicy policy = ScalePolicy::none;
  ScaleType scale_type = ScaleType::f32;
  Rounding rounding = Rounding::nearest_even;
  bool expanded = false;  ///< groups only: dynamic range expansion (COAT)
  /// bf16 without a scale: an fp32 value in two halves, its upper 16 bits, rounded with ties away
  /// from zero, and, where scales are, the lower ones, 64 fp32 words for each 128 of them
  /// (master_halves()).
  bool remainder = false;
  /// Scales in e4m3 only: 16 values along the contracted extent go through a random Hadamard
  /// transform before the cast (numeric/hadamard.h), on both sides of a product.
  bool hadamard = false;
  /// Scales in e4m3 only: each row of the codes, and not the tensor, has a scale above its blocks'.
  bool row_scaled = false;
  float fixed_scale = 1.0F;  ///< ScalePolicy::fixed only
  float amax_epsilon =
      0.0F;  ///< ScalePolicy::current, fp32 and pow2 only: a smaller amax counts as this
  DelayedScaling delayed;  ///< ScalePolicy::delayed only

  /// Whether values are stored as scale * value, with scales next to them.
  bool is_scaled() const { return policy != ScalePolicy::none; }
  /// Whether the scales of blocks lie under a scale of the tensor.
  bool is_two_level() const { return is_scaled() && facts_of(scale_type).two_level; }
  /// Whether its scale is delayed, but current in a first window.
  bool is_current_at_first() const {
    return policy == ScalePolicy::delayed && delayed.current_at_first;
  }
  bool operator==(const TensorFormat&) const = default;
};

/// Returns the format of unscaled storage in `dtype`.
TensorFormat plain(DType dtype);

/// fp32 values stored as bf16 and a remainder of 16 bits: in 4 bytes, without loss, and the bf16
/// half is a weight that GEMMs read (TransformerEngine, common/multi_tensor/adam.cu, AdamFunctor of
/// parameter remainders). Grouped as the remainders are, 128 elements together.
TensorFormat master_halves();

/// "bf16", "bf16 remainder", "e4m3 tensor delayed(1024, max)", "e4m3 1x128 current pow2": the
/// spelling of `explain`.
std::string describe(const TensorFormat& format);

/// The inverse of describe(). After the element type the words may be in any order; "current"
/// and "tensor" may be left out next to another word of scaling. Throws ConfigError that says which
/// word is wrong and what is known.
TensorFormat parse_format(std::string_view text);

/// "tensor", "row", "1x128", "group(128)".
std::string name_of(ScaleBlock block);

/// "fp32", "pow2", "e8m0", "e4m3", "e8m0_floor", "e8m0_even", "e4m3_4over6", ...
std::string_view name_of(ScaleType type);

/// Return the words that parse_format() knows, for messages: element types, blocks in use, and
/// types of scales other than fp32, which is not written.
std::vector<std::string> format_elements();
std::vector<std::string> format_blocks();
std::vector<std::string> format_scale_types();

}  // namespace fp8train
