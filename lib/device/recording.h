#pragma once
// Recordings: a sequence of operations that a device takes from its stream once and can then start
// again with one call, without the host work of launching each (CUDA graphs). Addresses, shapes and
// scalars are those of the time of recording; values that change from step to step are in device
// memory.

#include <memory>

#include "device/device.h"

namespace fp8train {

/// A piece of work that is the same every time it is run on a device.
class RepeatedWork {
 public:
  /// Runs `work` itself the first time, so that libraries make their plans and buffers, and from
  /// the second time on as a recording, if the device records. Not reentrant.
  template <typename Work>
  void run(Device& device, const Work& work) {
    if (recording_ != nullptr) {
      recording_->replay();
      return;
    }
    if (ran_ && device.records()) {
      recording_ = device.record(work);
      recording_->replay();
      return;
    }
    work();
    ran_ = true;
  }

 private:
  bool ran_ = false;
  std::unique_ptr<Recording> recording_;
};

}  // namespace fp8train
