#include "base/philox.h"

#include <catch2/catch.hpp>
#include <set>

namespace fp8train {
namespace {

bool equals(const PhiloxBlock& block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return block.word[0] == a && block.word[1] == b && block.word[2] == c && block.word[3] == d;
}

}  // namespace

// The known-answer vectors of Philox4x32-10 published with the paper's Random123 library.
TEST_CASE("Philox gives the published answers", "[base]") {
  CHECK(equals(philox(0, 0, 0), 0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U));
  CHECK(equals(philox(~0ULL, ~0ULL, ~0ULL), 0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU));
  CHECK(equals(philox(0x299F31D0A4093822ULL, 0x0370734413198A2EULL, 0x85A308D3243F6A88ULL),
               0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U));
}

TEST_CASE("Philox keys of different streams differ", "[base]") {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint64_t purpose = 0; purpose < 20; ++purpose) {
      for (uint64_t index = 0; index < 20; ++index) {
        keys.insert(philox_key(seed, purpose, index));
      }
    }
  }
  CHECK(keys.size() == 8000);
  CHECK(philox_key(1, 2) == philox_key(1, 2, 0));
}

TEST_CASE("uniform numbers lie in [0, 1)", "[base]") {
  CHECK(uniform_from_bits(0) == 0.0F);
  CHECK(uniform_from_bits(0x80000000U) == 0.5F);
  CHECK(uniform_from_bits(0xFFFFFFFFU) < 1.0F);
  CHECK(uniform_from_bits(0xFFFFFFFFU) == 1.0F - 0x1p-24F);
}

}  // namespace fp8train
