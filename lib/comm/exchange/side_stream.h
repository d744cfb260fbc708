#pragma once
// The device's side stream for work between ranks, ordered by events against the stream of a
// caller. One thread uses it.

#include <memory>
#include <vector>

#include "device/device.h"

namespace fp8train {

class SideStream {
 public:
  explicit SideStream(Device& device)
      : device_(&device), stream_(device.side_stream()), start_(device.make_event()) {}

  const Stream& stream() const { return stream_; }
  bool is(const Stream& stream) const { return stream.native() == stream_.native(); }

  /// Makes work that is submitted to the side stream from now on run after the work in `stream`.
  void follow(const Stream& stream) {
    if (!is(stream)) {
      start_->record(stream);
      start_->hold(stream_);
    }
  }

  /// Returns an event behind the work that is in the side stream. It is used again once nobody else
  /// holds it.
  std::shared_ptr<StreamEvent> mark_end() {
    for (const auto& event : ends_) {
      if (event.use_count() == 1) {
        event->record(stream_);
        return event;
      }
    }
    ends_.push_back(device_->make_event());
    ends_.back()->record(stream_);
    return ends_.back();
  }

 private:
  Device* device_;
  Stream stream_;
  std::unique_ptr<StreamEvent> start_;
  std::vector<std::shared_ptr<StreamEvent>> ends_;
};

}  // namespace fp8train
