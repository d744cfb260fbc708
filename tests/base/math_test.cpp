#include "base/math.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>

using namespace fp8train;

TEST_CASE("ceil_div counts the parts that hold all, round_up their elements", "[base]") {
  for (const int64_t size : {1, 3, 4, 128}) {
    for (int64_t count = 0; count <= 3 * size + 1; ++count) {
      CAPTURE(count, size);
      const int64_t parts = ceil_div(count, size);
      CHECK(parts * size >= count);
      CHECK((parts - 1) * size < count);
      CHECK(round_up(count, size) == parts * size);
    }
  }
}

TEST_CASE("ceil_div and round_up keep the type of the count", "[base]") {
  constexpr int64_t kBeyond32Bits = (int64_t{1} << 40) + 1;
  static_assert(ceil_div(kBeyond32Bits, 2) == (int64_t{1} << 39) + 1);
  static_assert(round_up(kBeyond32Bits, 2) == kBeyond32Bits + 1);
  static_assert(round_up(size_t{257}, 256) == 512);
  static_assert(sizeof(round_up(size_t{1}, 256)) == sizeof(size_t));
  SUCCEED();
}
