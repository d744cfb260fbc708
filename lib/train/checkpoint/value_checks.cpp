#include "train/checkpoint/value_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "base/math.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

/// The largest encoding of a finite number without its sign.
template <typename T>
constexpr uint32_t kLargestFinite = FormatLayout<T>::kMaxCode;
template <>
constexpr uint32_t kLargestFinite<float> = 0x7f7fffffU;
template <>
constexpr uint32_t kLargestFinite<bf16> = 0x7f7fU;

template <typename T>
struct Possible {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t,
                                  std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>;
  static constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
  Bits negative_limit;  ///< the largest encoding of a negative number, without its sign

  bool operator()(Bits bits) const {
    const auto magnitude = static_cast<Bits>(bits & static_cast<Bits>(~kSign));
    return magnitude <=
           ((bits & kSign) != 0 ? negative_limit : static_cast<Bits>(kLargestFinite<T>));
  }
};

template <typename T>
int64_t first_impossible(const void* values, int64_t count, Signs signs) {
  using Bits = typename Possible<T>::Bits;
  constexpr int64_t kBlock = int64_t{1} << 16;
  const auto* const bits = static_cast<const Bits*>(values);
  const Possible<T> possible = {signs == Signs::any ? static_cast<Bits>(kLargestFinite<T>)
                                                    : Bits{0}};
  const int64_t blocks = ceil_div(count, kBlock);
  int64_t first = count;
#pragma omp parallel for schedule(dynamic, 16) reduction(min : first) if (blocks > 1)
  for (int64_t block = 0; block < blocks; ++block) {
    const Bits* const begin = bits + block * kBlock;
    const Bits* const end = bits + std::min((block + 1) * kBlock, count);
    unsigned impossible = 0;
    for (const Bits* one = begin; one < end; ++one) {
      impossible |= possible(*one) ? 0U : 1U;
    }
    if (impossible != 0) {
      first = std::min<int64_t>(first, std::find_if_not(begin, end, possible) - bits);
    }
  }
  return first;
}

}  // namespace

int64_t first_impossible(const void* values, DType type, int64_t count, Signs signs) {
  if (type == DType::u8) {  // two codes of four bits, which are all numbers
    const auto* const bytes = static_cast<const uint8_t*>(values);
    const uint8_t impossible = signs == Signs::any ? 0 : 0x88;
    return std::find_if(bytes, bytes + count, [&](uint8_t pair) { return pair & impossible; }) -
           bytes;
  }
  int64_t first = count;
  with_stored_type(type, [&](auto tag) {
    first = first_impossible<typename decltype(tag)::Type>(values, count, signs);
  });
  return first;
}

std::string impossible_state(const std::string& name, const void* values, DType type, int64_t count,
                             int64_t first) {
  const bool is_signed = !name.starts_with("moment2.") &&
                         name.find(".scale") == std::string::npos && !name.ends_with(".factor");
  const int64_t bad =
      first_impossible(values, type, count, is_signed ? Signs::any : Signs::not_negative);
  if (bad == count) {
    return "";
  }
  int64_t element = first + bad;
  if (type == DType::u8) {  // a pair of codes, the first of them in the lower half
    const bool lower = (static_cast<const uint8_t*>(values)[bad] & 8U) != 0;
    element = 2 * element + (lower ? 0 : 1);
  }
  return fmt::format("{}[{}] is {}", name, element,
                     is_signed ? "NaN or infinite" : "NaN, infinite or negative");
}

}  // namespace fp8train
