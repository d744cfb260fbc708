#include "numeric/with_type.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace fp8train;

namespace {

constexpr DType kAll[] = {DType::f32,  DType::bf16, DType::f16, DType::e4m3,
                          DType::e5m2, DType::e8m0, DType::i8,  DType::u8,
                          DType::u16,  DType::i32,  DType::i64, DType::f64};

/// The element types that `choose` calls its body for, each of which must be the one asked for.
template <typename Choose>
std::vector<DType> chosen(Choose choose) {
  std::vector<DType> types;
  for (const DType type : kAll) {
    choose(type, [&](auto tag) {
      CHECK(dtype_of<typename decltype(tag)::Type>() == type);
      types.push_back(type);
    });
  }
  return types;
}

}  // namespace

TEST_CASE("An element type chooses its own template, once, and no other type does", "[numeric]") {
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
