// Products that are known to the last bit: that nothing is rounded on the way, also in 14 bits, and
// that defects are far beyond the bound.

#include "bench/exact_product.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "bench/parts.h"
#include "device/device.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

/// A product of two tensors of codes with scales of 1, for types of any range, and of 8.
class Codes {
 public:
  Codes(const GemmShape& shape, DType a_type, DType c_type)
      : shape_(shape),
        exact_(shape),
        a_(*device_, codes_format(per::tensor, a_type, ScalePolicy::delayed), shape.m, shape.k),
        b_(*device_, codes_format(per::tensor, DType::e4m3, ScalePolicy::delayed), shape.n,
           shape.k),
        c_(*device_, c_type, {shape.m, shape.n}, MemoryCategory::workspace) {
    cast(a_, exact_.a(), shape.m, 1.0F);
    cast(b_, exact_.b(), shape.n, 8.0F);
  }

  ops::Gemm call() const { return {.a = a_.operand(false), .b = b_.operand(true), .c = c_}; }
  double error(const ops::Gemm& call) { return exact_.error(*device_, call); }

  /// Sets the last `count` codes of each row of `a` to zero.
  void drop_tail(int64_t count) {
    auto* const codes = a_.rowwise.codes.view().as<uint8_t>();
    for (int64_t row = 0; row < shape_.m; ++row) {
      std::fill_n(codes + (row + 1) * shape_.k - count, count, uint8_t{0});
    }
  }

 private:
  void cast(const BenchCodes& codes, const ExactMatrix& matrix, int64_t rows, float scale) {
    const Tensor values(*device_, DType::bf16, {rows, shape_.k}, MemoryCategory::workspace);
    matrix.fill(*device_, values);
    auto* const state = codes.state.view().as<float>();
    state[0] = scale;
    state[1] = 1.0F / scale;
    codes.cast(device_->stream(), values);
  }

  std::unique_ptr<Device> device_ = make_device(DeviceKind::cpu);
  GemmShape shape_;
  ExactProduct exact_;
  BenchCodes a_, b_;
  Tensor c_;
};

TEST_CASE("products of whole numbers are exact in fp32 and in an accumulator of 14 bits") {
  for (const GemmShape& shape : {GemmShape{16, 32, 8192}, {8, 16, 40000}, {9, 24, 8176}}) {
    for (const DType a : Fp8Types::kTypes) {
      for (const DType c : {DType::f32, DType::bf16}) {
        CAPTURE(shape.text(), name_of(a), name_of(c));
        Codes codes(shape, a, c);
        ops::Gemm call = codes.call();
        CHECK(codes.error(call) == 0);
        call.emulate_accumulator = true;
        CHECK(codes.error(call) == 0);
        call.beta = c == DType::f32 ? 1.0F : 0.0F;
        CHECK(codes.error(call) == 0);
      }
    }
  }
}

TEST_CASE("a tail of K that is left out, a wrong scale and a wrong row are beyond the bound") {
  for (const DType c : {DType::f32, DType::bf16}) {
    const double bound = ExactProduct::bound(c);
    Codes codes({64, 64, 8176}, DType::e4m3, c);
    ops::Gemm call = codes.call();
    std::swap(call.a.tensor.tensor_scale, call.b.tensor.tensor_scale);
    CHECK(codes.error(call) == 0);  // both multiply the sum
    call.a.tensor.tensor_scale = call.b.tensor.tensor_scale;
    CHECK(codes.error(call) > 0.5);
    call = codes.call();
    call.emulate_accumulator = true;
    codes.drop_tail(16);
    CHECK(codes.error(call) > 100 * bound);
    CHECK(codes.error(call) < 0.1);
  }
}

TEST_CASE("bench products --verify counts no wrong product") {
  BenchOptions options;
  options.verify = true;
  options.tokens = 48;
  options.step.preset = "toy";
  options.step.vocabulary = 96;
  std::vector<DeviceKind> kinds = {DeviceKind::cpu};
#if defined(FP8TRAIN_CUDA_SHIM)
  kinds.push_back(DeviceKind::cuda);
#endif
  for (const DeviceKind kind : kinds) {
    const std::unique_ptr<Device> device = make_device(kind);
    CAPTURE(device->description());
    const Json report = kProductsBench.measure(*device, options);
    CHECK(report.at("wrong") == 0);
    int tails = 0;
    for (const Json& result : report.at("results")) {
      CAPTURE(result.dump());
      CHECK(result.at("error") <= result.at("bound"));
      tails += result.at("layer") == "tail" ? 1 : 0;
    }
    CHECK(tails == 4 * (7 + 27));
  }
}

}  // namespace
}  // namespace fp8train
