#include "tensor/stored_pool.h"

#include "base/error.h"

namespace fp8train {
namespace {

constexpr int64_t kAlignment = kStoredGroup;  // elements

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

StoredPool::Buffer& StoredPool::buffer_of(const TensorFormat& format, MemoryCategory category,
                                          int lane) {
  for (Buffer& buffer : buffers_) {
    if (buffer.format == format && buffer.category == category && buffer.lane == lane) {
      return buffer;
    }
  }
  Buffer& made = buffers_.emplace_back();
  made.format = format;
  made.category = category;
  made.lane = lane;
  return made;
}

size_t StoredPool::add(const TensorFormat& format, const Shape& shape, MemoryCategory category,
                       int lane) {
  check(is_stored_format(format), "no tensor is kept in this format");
  Buffer& buffer = buffer_of(format, category, lane);
  check(buffer.codes.empty(), "tensors are added before the pool is allocated");
  const auto index = static_cast<size_t>(&buffer - buffers_.data());
  buffer.tensors.push_back(entries_.size());
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
      if (device.kind() != DeviceKind::meta) {  // gigabytes of them in a plan of a large model
        copy_from_host(device, buffer.scales,
                       initial_scales(buffer.format, buffer.scale_count).data());
      }
    }
  }
}

StoredTensor StoredPool::at(size_t position) const {
  const Entry& entry = entries_.at(position);
  const Buffer& buffer = buffers_[entry.buffer];
  if (buffer.codes.empty()) {
    return {};
  }
  const int64_t scales = stored_scales(buffer.format, entry.shape.count());
  return {codes_of(buffer, entry.first, entry.shape), buffer.format,
          scales_of(buffer, entry.first_scale, entry.first_scale + scales)};
}

View StoredPool::codes_of(const Buffer& buffer, int64_t first, const Shape& shape) const {
  const DType dtype = buffer.format.dtype;
  const size_t begin = static_cast<size_t>(first) * size_of(dtype);
  return {buffer.codes.view().as<uint8_t>() + begin, dtype, shape};
}

View StoredPool::scales_of(const Buffer& buffer, int64_t first, int64_t end) const {
  return first == end ? View{}
                      : View{buffer.scales.view().as<float>() + first, DType::f32, {end - first}};
}

StoredTensor StoredPool::flat(const Stretch& stretch) const {
  const Buffer& buffer = buffers_[stretch.buffer];
  const Entry& first = entries_[buffer.tensors[stretch.begin]];
  const bool to_end = stretch.end == buffer.tensors.size();
  const int64_t end = to_end ? buffer.elements : entries_[buffer.tensors[stretch.end]].first;
  const int64_t end_scale =
      to_end ? buffer.scale_count : entries_[buffer.tensors[stretch.end]].first_scale;
  return {codes_of(buffer, first.first, {end - first.first}), buffer.format,
          scales_of(buffer, first.first_scale, end_scale)};
}

std::vector<int64_t> StoredPool::begins_of(const Stretch& stretch) const {
  const Buffer& buffer = buffers_[stretch.buffer];
  std::vector<int64_t> begins;
  for (size_t i = stretch.begin; i < stretch.end; ++i) {
    begins.push_back(entries_[buffer.tensors[i]].first -
                     entries_[buffer.tensors[stretch.begin]].first);
  }
  return begins;
}

std::vector<View> StoredPool::fp32() const {
  std::vector<View> views;
  for (const Buffer& buffer : buffers_) {
    if (buffer.format == TensorFormat{} && !buffer.codes.empty()) {
      views.push_back(buffer.codes.view());
    }
  }
  return views;
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
