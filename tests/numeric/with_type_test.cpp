#include "numeric/with_type.h"

#include <catch2/catch.hpp>
#include <vector>

#include "base/error.h"

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
