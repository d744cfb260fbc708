#include "tensor/stored_pool.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "device/device_questions.h"

namespace fp8train {

std::vector<float> initial_scales(const TensorFormat& format, int64_t count) {
  std::vector<float> scales(static_cast<size_t>(count), 1.0F);
  if (format.block == per::tensor) {
    for (size_t i = 1; i < scales.size(); i += 2) {
      scales[i] = 0.0F;
    }
  }
  return scales;
}

int64_t range_alignment(const TensorFormat& wire) {
  return wire.block.is_group() ? std::lcm(kRangeAlignment, int64_t{wire.block.columns})
                               : kRangeAlignment;
}

StoredPool::Buffer& StoredPool::buffer_of(const TensorFormat& format, MemoryCategory category,
                                          int queue) {
  for (Buffer& buffer : buffers_) {
    if (buffer.format == format && buffer.category == category && buffer.queue == queue) {
      return buffer;
    }
  }
  Buffer& made = buffers_.emplace_back();
  made.format = format;
  made.category = category;
  made.queue = queue;
  return made;
}

size_t StoredPool::add(const TensorFormat& format, const Shape& shape, MemoryCategory category,
                       int queue, int64_t alignment) {
  check(is_stored_format(format), "no tensor is stored in this format");
  Buffer& buffer = buffer_of(format, category, queue);
  check(buffer.codes.empty(), "tensors are added before the pool is allocated");
  const auto index = static_cast<size_t>(&buffer - buffers_.data());
  buffer.tensors.push_back(entries_.size());
  entries_.push_back({index, shape, buffer.elements, buffer.scale_count});
  buffer.elements += round_up(shape.count(), alignment);
  buffer.scale_count += stored_scales(format, shape.count());
  return entries_.size() - 1;
}

void StoredPool::allocate(Device& device, const Placement& placement) {
  for (Buffer& buffer : buffers_) {
    if (placement.elements) {
      buffer.elements = placement.elements(buffer.queue, buffer.elements);
    }
    buffer.elements = std::max(buffer.elements, kRangeAlignment);  // so that there is memory
    if (buffer.format.block != per::tensor) {
      buffer.scale_count = stored_scales(buffer.format, buffer.elements);
    }
    borrow(buffer, placement);
    make(device, buffer);
  }
}

/// The rest is to be the pool's.
void StoredPool::borrow(Buffer& buffer, const Placement& placement) {
  if (!placement.memory) {
    return;
  }
  buffer.codes = placement.memory(buffer.queue, buffer.format.dtype, buffer.elements);
  if (!buffer.codes.empty() && buffer.scale_count > 0) {
    buffer.scales = placement.memory(buffer.queue, DType::f32, buffer.scale_count);
  }
}

void StoredPool::make(Device& device, Buffer& buffer) {
  if (buffer.codes.empty()) {
    buffer.own_codes = Tensor(device, buffer.format.dtype, {buffer.elements}, buffer.category);
    buffer.codes = buffer.own_codes;
    fill_zero(device, buffer.codes);
  }
  if (buffer.scale_count > 0 && buffer.scales.empty()) {
    const MemoryCategory category =
        buffer.format.remainder ? MemoryCategory::master_weights : buffer.category;
    buffer.own_scales = Tensor(device, DType::f32, {buffer.scale_count}, category);
    buffer.scales = buffer.own_scales;
    if (buffer.format.remainder) {
      fill_zero(device, buffer.scales);
    } else if (!counts_only(device)) {  // gigabytes in a plan of a large model
      copy_from_host(device, buffer.scales,
                     initial_scales(buffer.format, buffer.scale_count).data());
    }
  }
}

Encoded StoredPool::at(size_t position) const {
  const Entry& entry = entries_.at(position);
  if (entry.buffer == kNone || buffers_[entry.buffer].codes.empty()) {
    return {};
  }
  const Buffer& buffer = buffers_[entry.buffer];
  const int64_t scales = stored_scales(buffer.format, entry.shape.count());
  return {codes_of(buffer, entry.first, entry.shape), buffer.format,
          scales_of(buffer, entry.first_scale, entry.first_scale + scales)};
}

View StoredPool::codes_of(const Buffer& buffer, int64_t first, const Shape& shape) const {
  const DType dtype = buffer.format.dtype;
  // A row of a stored tensor does not begin with a byte of its own.
  const bool is_flat = storage_bytes(dtype, shape) > storage_bytes(dtype, {shape.count()});
  return {buffer.codes.as<uint8_t>() + storage_bytes(dtype, {first}), dtype,
          is_flat ? Shape{shape.count()} : shape};
}

View StoredPool::scales_of(const Buffer& buffer, int64_t first, int64_t end) const {
  return first == end ? View{} : View{buffer.scales.as<float>() + first, DType::f32, {end - first}};
}

Encoded StoredPool::flat(const Stretch& stretch) const {
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
      views.push_back(buffer.codes);
    }
  }
  return views;
}

std::vector<View> StoredPool::words_without(size_t buffer, const std::vector<bool>& skipped) const {
  const Buffer& of = buffers_[buffer];
  // Words begin at every fourth element of a byte, and at every eighth of half a byte.
  const int64_t in_word = facts_of(of.format.dtype).bits < 8 ? 8 : 4;
  std::vector<View> views;
  const auto add = [&](int64_t begin, int64_t end) {
    if (begin < end) {
      views.push_back(as_words(codes_of(of, begin, {end - begin})));
    }
  };
  int64_t begin = 0;
  for (const size_t position : of.tensors) {
    if (position < skipped.size() && skipped[position]) {
      const Entry& entry = entries_[position];
      add(begin, entry.first);
      begin = (entry.first + entry.shape.count()) / in_word * in_word;
    }
  }
  add(begin, of.elements);
  return views;
}

std::vector<View> StoredPool::tensor_scales(int queue) const {
  std::vector<View> views;
  for (const Buffer& buffer : buffers_) {
    if (buffer.queue == queue && buffer.format.block == per::tensor && !buffer.scales.empty()) {
      views.push_back(buffer.scales);
    }
  }
  return views;
}

Encoded StoredPool::whole(size_t buffer) const {
  return flat({buffer, 0, buffers_[buffer].tensors.size()});
}

}  // namespace fp8train
