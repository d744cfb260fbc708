#include <catch2/catch.hpp>

#include "base/error.h"
#include "tensor/stored_pool.h"
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
  block.block = per::block_1x128;
  block.scale_type = ScaleType::pow2;
  CHECK(describe(block) == "e4m3 1x128 current pow2");
}

TEST_CASE("what a pool clears is all of a buffer but the tensors that are skipped") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  StoredPool pool;
  pool.add(plain(DType::bf16), {128}, MemoryCategory::gradients);
  pool.add(plain(DType::bf16), {130}, MemoryCategory::gradients);
  pool.add({}, {7}, MemoryCategory::gradients);
  pool.add(plain(DType::bf16), {5, 3}, MemoryCategory::gradients);
  pool.add(plain(DType::bf16), {1}, MemoryCategory::gradients);
  pool.allocate(*device);
  const View all = pool.whole(0).codes;
  std::vector<uint16_t> ones(static_cast<size_t>(all.count()), 1);
  copy_from_host(*device, all, ones.data());
  for (const View& words : pool.words_without(0, {false, true, true, true})) {
    fill_zero(*device, words);
  }
  copy_to_host(*device, ones.data(), all);
  for (size_t i = 0; i < ones.size(); ++i) {
    CAPTURE(i);
    const bool skipped = (i >= 128 && i < 258) || (i >= 384 && i < 399);
    const bool either = i == 256 || i == 257 || (i >= 396 && i < 399);  // of the last words
    CHECK((either || ones[i] == (skipped ? 1 : 0)));
  }
  CHECK(pool.words_without(0, {}).size() == 1);
  CHECK(pool.words_without(1, {false, false, true}).size() == 1);  // the gap
}
