#include "tensor/tensor.h"

#include <fmt/format.h>

#include "base/error.h"
#include "tensor/encoded.h"

namespace fp8train {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.rank(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

View rows_of(const View& view, int64_t begin, int64_t count) {
  const int64_t columns = view.shape.back();
  check(begin >= 0 && count >= 0 && begin + count <= view.shape.rows(), "rows out of range");
  const size_t offset = storage_bytes(view.dtype, {begin, columns});
  return {static_cast<char*>(view.data) + offset, view.dtype, {count, columns}};
}

ConstView rows_of(const ConstView& view, int64_t begin, int64_t count) {
  return rows_of(View{const_cast<void*>(view.data), view.dtype, view.shape}, begin, count);
}

View as_words(const View& view) {
  return {view.data, DType::f32, {static_cast<int64_t>(view.bytes() / sizeof(float))}};
}

View reshaped(const View& view, const Shape& shape) {
  check(shape.count() == view.count(), "reshape changes the number of elements");
  return {view.data, view.dtype, shape};
}

ConstView reshaped(const ConstView& view, const Shape& shape) {
  check(shape.count() == view.count(), "reshape changes the number of elements");
  return {view.data, view.dtype, shape};
}

Tensor::Tensor(Device& device, DType dtype, const Shape& shape, MemoryCategory category)
    : buffer_(device, storage_bytes(dtype, shape), category), dtype_(dtype), shape_(shape) {}

View allocate(Arena& arena, DType dtype, const Shape& shape) {
  return {arena.allocate(storage_bytes(dtype, shape)), dtype, shape};
}

std::vector<float> to_host_f32(Device& device, const ConstView& view) {
  check(view.dtype == DType::f32, "to_host_f32 reads fp32");
  std::vector<float> values(static_cast<size_t>(view.count()));
  device.copy_to_host(values.data(), view.data, view.bytes());
  return values;
}

void copy_from_host(Device& device, const View& to, const void* from) {
  device.copy_from_host(to.data, from, to.bytes());
}

void copy_to_host(Device& device, void* to, const ConstView& from) {
  device.copy_to_host(to, from.data, from.bytes());
}

void fill_zero(Device& device, const View& view) {
  device.fill_zero(view.data, view.bytes());
}

}  // namespace fp8train
