#include "tensor/tensor_format.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace fp8train;
using Catch::Contains;

TEST_CASE("formats are written as they are read") {
  for (const char* text :
       {"fp32",
        "bf16",
        "bf16 stochastic",
        "fp16 tensor current",
        "e4m3 tensor current pow2",
        "e4m3 group(128) current",
        "e4m3 group(128) expanded current stochastic",
        "e4m3 tensor delayed(16, max)",
        "e5m2 tensor delayed(4, most_recent, margin 2)",
        "e4m3 tensor delayed(16, max, current at first, every 3) pow2",
        "e4m3 tensor delayed(16, max, current at first, per step, each rank) pow2",
        "e4m3 1x32 current e8m0",
        "e4m3 tensor static(0.1)",
        "e4m3 tensor auto pow2",
        "e4m3 row current pow2 epsilon 1e-12",
        "e4m3 1x128 current",
        "e4m3 128x128 current",
        "e4m3 1x16 current",
        "e4m3 32x32 current e8m0",
        "e5m2 1x32 current e8m0_floor",
        "e4m3 1x32 current e8m0_even",
        "e4m3 group(256) current"}) {
    CAPTURE(text);
    CHECK(describe(parse_format(text)) == text);
  }
}

TEST_CASE("a block is spelled by its numbers") {
  CHECK(name_of(ScaleBlock{}) == "tensor");
  CHECK(name_of(ScaleBlock{1, 0}) == "row");
  CHECK(name_of(ScaleBlock{32, 32}) == "32x32");
  CHECK(name_of(per::group(256)) == "group(256)");
  CHECK(parse_format("e4m3 1x16").block == ScaleBlock{1, 16});
  CHECK(parse_format("e4m3 128x128").block == per::block_128x128);
  CHECK(per::group(16).is_group());
  CHECK_FALSE(per::row.is_group());
  CHECK_FALSE(per::tensor.is_group());
}

TEST_CASE("the table of element types has them in their order") {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    CAPTURE(kDTypes[i].name);
    CHECK(static_cast<size_t>(kDTypes[i].type) == i);
    CHECK((kDTypes[i].bits % 8 == 0 || kDTypes[i].bits == 4));
    CHECK(kDTypes[i].has(use::code) == (kDTypes[i].clips_above > kDTypes[i].max));
  }
  CHECK(size_of(DType::e4m3) == 1);
  static_assert(size_of(DType::f64) == 8);
  CHECK_THROWS_AS(size_of(DType::e2m1), InternalError);
}

TEST_CASE("what goes without saying may be left out, in any order") {
  CHECK(describe(parse_format("e4m3 group(128)")) == "e4m3 group(128) current");
  CHECK(describe(parse_format("fp16 tensor")) == "fp16 tensor current");
  CHECK(describe(parse_format("e4m3 pow2")) == "e4m3 tensor current pow2");
  CHECK(describe(parse_format(" e4m3  stochastic group( 128 ) ")) ==
        "e4m3 group(128) current stochastic");
  CHECK(describe(parse_format("e4m3 delayed")) == "e4m3 tensor delayed(1024, max)");
  CHECK(parse_format("e4m3") == plain(DType::e4m3));
}

TEST_CASE("a wrong word is named, with the nearest one that is known") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no element type"},
      {"e4m2", "unknown element type 'e4m2'; did you mean 'e4m3'? (expected one of: fp32, "},
      {"float", "expected one of: fp32, bf16, fp16, e4m3, e5m2, e2m1, int8"},
      {"tensor e4m3", "unknown element type 'tensor'"},
      {"e4m3 tensr", "did you mean 'tensor'?"},
      {"e4m3 tensor row", "second block"},
      {"e4m3 current delayed(4)", "second rule of scaling"},
      {"e4m3 pow2 e8m0", "second type of scale"},
      {"e4m3 group", "group(128)"},
      {"e4m3 group(0)", "whole number in [1"},
      {"e4m3 group(128", "not closed"},
      {"e4m3 tensor(3)", "takes nothing"},
      {"e4m3 1x128(3)", "takes nothing"},
      {"e4m3 1x0", "unknown word '1x0'"},
      {"e4m3 1x128y", "unknown word '1x128y'; did you mean '1x128'?"},
      {"e4m3 delayed(0, max)", "whole number in [1"},
      {"e4m3 delayed(4, mix)", "did you mean 'max'?"},
      {"e4m3 delayed(4, margin 1.5)", "a margin"},
      {"e4m3 static(-1)", "static(1)"},
      {"e4m3 tensor epsilon x", "epsilon is a number"},
      {"e4m3 tensor epsilon", "unknown word 'epsilon'"},
      {"e4m3 delayed(4) epsilon 1e-6", "belongs to current"},
      {"e2m1 1x16 e4m3 epsilon 1e-6", "belongs to fp32 and pow2 scales"},
      {"e2m1 1x16 e4m3 hadamard hadamard", "second transform"},
      {"e4m3 expanded", "belongs to groups"}};
  for (const auto& [text, why] : cases) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_format(text), ConfigError);
    CHECK_THROWS_WITH(parse_format(text), Contains(why));
  }
}
