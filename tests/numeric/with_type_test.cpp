#include "numeric/with_type.h"

#include <catch2/catch.hpp>
#include <vector>

#include "base/error.h"
#include "numeric/code_family.h"

using namespace fp8train;

namespace {

/// The element types that `choose` calls its body for, each of which must be the one asked for; it
/// throws for all others.
template <typename Choose>
std::vector<DType> chosen(Choose choose) {
  std::vector<DType> types;
  for (const DTypeFacts& facts : kDTypes) {
    const size_t before = types.size();
    try {
      choose(facts.type, [&](auto tag) {
        CHECK(dtype_of<typename decltype(tag)::Type>() == facts.type);
        types.push_back(facts.type);
      });
      CHECK(types.size() == before + 1);
    } catch (const InternalError& error) {
      CHECK(types.size() == before);
      CHECK(std::string(error.what()).find(name_of(facts.type)) != std::string::npos);
    }
  }
  return types;
}

}  // namespace

TEST_CASE("An element type chooses its own template, once, and others throw", "[numeric]") {
  using Types = std::vector<DType>;
  CHECK(chosen([](DType type, auto body) { with_float_type(type, body); }) ==
        Types{DType::f32, DType::bf16, DType::f16});
  CHECK(chosen([](DType type, auto body) { with_fp8_type(type, body); }) ==
        Types{DType::e4m3, DType::e5m2});
  CHECK(chosen([](DType type, auto body) { with_code_type(type, body); }) ==
        Types{DType::e4m3, DType::e5m2, DType::i8});
  CHECK(chosen([](DType type, auto body) { with_stored_type(type, body); }) ==
        Types{DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2});
}

TEST_CASE("fp64 is an element type of its own", "[numeric]") {
  CHECK(size_of(DType::f64) == sizeof(double));
  CHECK(dtype_of<double>() == DType::f64);
  CHECK(name_of(DType::f64) == "fp64");
}

namespace {

template <typename... Types>
std::vector<DType> types_of(TypeList<Types...> /*list*/) {
  return {dtype_of<Types>()...};
}

}  // namespace

TEST_CASE("Lists of element types follow from the table", "[numeric]") {
  using Types = std::vector<DType>;
  CHECK(types_of(TypeList<float, bf16, f16, e4m3, e5m2, e2m1, e8m0, int8_t, uint8_t, uint16_t,
                          int32_t, int64_t, double>{}) ==
        Types{DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2, DType::e2m1,
              DType::e8m0, DType::i8, DType::u8, DType::u16, DType::i32, DType::i64, DType::f64});
  CHECK(types_of(CodeTypes{}) == Types{DType::e4m3, DType::e5m2, DType::e2m1, DType::i8});
  CHECK(types_of(PlainWireTypes{}) == Types{DType::f32, DType::bf16});
  CHECK(types_of(WireCodes{}) == Types{DType::e4m3, DType::e5m2, DType::i8});
  CHECK(types_of(RoleTypes{}) == Types{DType::f32, DType::bf16, DType::f16, DType::e4m3,
                                       DType::e5m2, DType::e2m1, DType::i8});
  for (const DTypeFacts& facts : kDTypes) {
    CAPTURE(facts.name);
    CHECK(Fp8Types::has(facts.type) == is_fp8(facts.type));
    CHECK(ByteCodes::has(facts.type) == (is_code_type(facts.type) && facts.bits == 8));
  }
}

TEST_CASE("the family of a code is its kind and its bits") {
  CHECK(code_family(DType::e4m3) == "fp8");
  CHECK(code_family(DType::e5m2) == "fp8");
  CHECK(code_family(DType::e2m1) == "fp4");
  CHECK(code_family(DType::i8) == "int8");
  CHECK(code_family(DType::bf16) == "bf16");
}
