#include <catch2/catch.hpp>

#include "base/error.h"
#include "tensor/tensor.h"
#include "tensor/tensor_format.h"

using namespace fp8train;

TEST_CASE("shapes count elements and rows") {
  const Shape shape = {3, 4, 5};
  CHECK(shape.count() == 60);
  CHECK(shape.rows() == 12);
  CHECK(shape.back() == 5);
  CHECK(Shape{}.count() == 1);
  CHECK(to_string(shape) == "[3, 4, 5]");
  CHECK(shape == Shape{3, 4, 5});
  CHECK_FALSE(shape == Shape{3, 20});
}

TEST_CASE("row slices and reshapes point into the same memory") {
  const auto device = make_device(DeviceKind::cpu);
  const Tensor tensor(*device, DType::bf16, {4, 6}, MemoryCategory::workspace);
  const View rows = rows_of(tensor.view(), 1, 2);
  CHECK(rows.shape == Shape{2, 6});
  CHECK(static_cast<char*>(rows.data) - static_cast<char*>(tensor.view().data) == 12);
  CHECK_THROWS_AS(rows_of(tensor.view(), 3, 2), InternalError);
  CHECK(reshaped(tensor.view(), {24}).data == tensor.view().data);
  CHECK_THROWS_AS(reshaped(tensor.view(), {25}), InternalError);
}

TEST_CASE("values travel to the device and back") {
  const auto device = make_device(DeviceKind::cpu);
  const Tensor tensor(*device, DType::f32, {3}, MemoryCategory::workspace);
  const float values[] = {1.5F, -2.0F, 0.25F};
  copy_from_host(*device, tensor, values);
  CHECK(to_host_f32(*device, tensor) == std::vector<float>{1.5F, -2.0F, 0.25F});
  fill_zero(*device, tensor);
  CHECK(to_host_f32(*device, tensor) == std::vector<float>(3, 0.0F));
}

TEST_CASE("formats describe themselves as explain prints them") {
  CHECK(describe(plain(DType::bf16)) == "bf16");
  TensorFormat delayed = plain(DType::e4m3);
  delayed.policy = ScalePolicy::delayed;
  CHECK(describe(delayed) == "e4m3 tensor delayed(1024, max)");
  delayed.delayed.margin = 2;
  delayed.delayed.algorithm = AmaxAlgorithm::most_recent;
  CHECK(describe(delayed) == "e4m3 tensor delayed(1024, most_recent, margin 2)");
  TensorFormat block = plain(DType::e4m3);
  block.policy = ScalePolicy::current;
  block.granularity = Granularity::block_1x128;
  block.scale_type = ScaleType::pow2;
  CHECK(describe(block) == "e4m3 1x128 current pow2");
}
