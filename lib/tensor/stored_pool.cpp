#include "tensor/stored_pool.h"

#include "base/error.h"

namespace fp8train {
namespace {

constexpr int64_t kAlignment = 64;  // elements: 256 bytes of fp32, 64 of FP8

/// Scales of zeros: ones, and an amax of 0 beside a tensor's scale.
std::vector<float> initial_scales(const TensorFormat& format, int64_t count) {
  std::vector<float> scales(static_cast<size_t>(count), 1.0F);
  if (format.granularity == Granularity::tensor) {
    for (size_t i = 1; i < scales.size(); i += 2) {
      scales[i] = 0.0F;
    }
  }
  return scales;
}

}  // namespace

StoredPool::Buffer& StoredPool::buffer_of(const TensorFormat& format, MemoryCategory category) {
  for (Buffer& buffer : buffers_) {
    if (buffer.format == format && buffer.category == category) {
      return buffer;
    }
  }
  buffers_.push_back({.format = format, .category = category, .codes = {}, .scales = {}});
  return buffers_.back();
}

size_t StoredPool::add(const TensorFormat& format, const Shape& shape, MemoryCategory category) {
  check(is_stored_format(format), "no tensor is kept in this format");
  Buffer& buffer = buffer_of(format, category);
  check(buffer.codes.empty(), "tensors are added before the pool is allocated");
  const auto index = static_cast<size_t>(&buffer - buffers_.data());
  entries_.push_back({index, shape, buffer.elements, buffer.scale_count});
  buffer.elements += (shape.count() + kAlignment - 1) / kAlignment * kAlignment;
  buffer.scale_count += stored_scales(format, shape.count());
  return entries_.size() - 1;
}

void StoredPool::allocate(Device& device) {
  for (Buffer& buffer : buffers_) {
    buffer.codes = Tensor(device, buffer.format.dtype, {buffer.elements}, buffer.category);
    fill_zero(device, buffer.codes);
    if (buffer.scale_count > 0) {
      buffer.scales = Tensor(device, DType::f32, {buffer.scale_count}, buffer.category);
      copy_from_host(device, buffer.scales,
                     initial_scales(buffer.format, buffer.scale_count).data());
    }
  }
}

StoredTensor StoredPool::at(size_t position) const {
  const Entry& entry = entries_.at(position);
  const Buffer& buffer = buffers_[entry.buffer];
  if (buffer.codes.empty()) {
    return {};
  }
  const DType dtype = buffer.format.dtype;
  const size_t begin = static_cast<size_t>(entry.first) * size_of(dtype);
  const View codes = {buffer.codes.view().as<uint8_t>() + begin, dtype, entry.shape};
  const int64_t scales = stored_scales(buffer.format, entry.shape.count());
  if (scales == 0) {
    return {codes, buffer.format, {}};
  }
  return {codes,
          buffer.format,
          {buffer.scales.view().as<float>() + entry.first_scale, DType::f32, {scales}}};
}

View StoredPool::fp32() const {
  for (const Buffer& buffer : buffers_) {
    if (buffer.format == TensorFormat{}) {
      return buffer.codes.view();
    }
  }
  return {};
}

std::vector<View> StoredPool::words() const {
  std::vector<View> views;
  for (const Buffer& buffer : buffers_) {
    const View codes = buffer.codes.view();
    views.push_back({codes.data, DType::f32, {static_cast<int64_t>(codes.bytes() / 4)}});
  }
  return views;
}

}  // namespace fp8train
