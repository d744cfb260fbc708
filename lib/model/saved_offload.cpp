#include "model/saved_offload.h"

#include <algorithm>

#include "base/math.h"

namespace fp8train {

SavedOffload::SavedOffload(Device& device, size_t blocks)
    : device_(&device),
      side_(device.copy_stream()),
      done_(device.make_event()),
      windows_{{{Arena(device, MemoryCategory::saved_activations), device.make_event()},
                {Arena(device, MemoryCategory::saved_activations), device.make_event()}}},
      used_(blocks) {}

void SavedOffload::reserve(const Bytes& of_block) {
  stored_ = of_block.stored;
  for (Window& window : windows_) {
    window.arena.release(0);
    window.arena.reserve(of_block.at_most);
  }
  const size_t moved = used_.size() - std::min(used_.size(), windows_.size());
  host_ = Buffer(*device_, moved * stored_, MemoryCategory::offloaded_activations);
}

SavedOffload::Bytes SavedOffload::high_water() const {
  return {std::max(windows_[0].arena.high_water(), windows_[1].arena.high_water()), most_};
}

Arena& SavedOffload::begin_forward(const Stream& stream, size_t block) {
  Window& window = window_of(block);
  window.copied->hold(stream);
  window.arena.release(0);
  return window.arena;
}

void SavedOffload::end_forward(const Stream& stream, size_t block) {
  Window& window = window_of(block);
  used_[block] = window.arena.mark();
  most_ = std::max(most_, used_[block]);
  if (is_moved(block)) {
    copy(stream, window, on_host(block), window.arena.base(), used_[block]);
  }
}

void SavedOffload::begin_backward(const Stream& stream, size_t block) {
  window_of(block).copied->hold(stream);
}

void SavedOffload::end_backward(const Stream& stream, size_t block) {
  Window& window = window_of(block);
  if (block >= windows_.size()) {
    const size_t next = block - windows_.size();
    copy(stream, window, window.arena.base(), on_host(next), used_[next]);
  }
}

void* SavedOffload::on_host(size_t block) const {
  return static_cast<char*>(host_.data()) + block * stored_;
}

void SavedOffload::copy(const Stream& stream, Window& window, void* to, const void* from,
                        size_t bytes) {
  done_->record(stream);
  done_->hold(side_);
  device_->copy(side_, to, from, bytes);
  window.copied->record(side_);
}

}  // namespace fp8train
