#pragma once
// What a layer needs to run: the device and its stream, the two arenas of the step, and what kind
// of pass this is. Layers never allocate elsewhere and never read anything back.

#include "device/arena.h"
#include "device/device.h"

namespace fp8train {

/// Learns in the backward pass of a step's last micro-batch which gradients are complete, so that
/// their exchange can begin while the pass goes on. All ranks are told the same in the same order.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Those of the parameters [begin, end) of the store.
  virtual void gradients_complete(size_t begin, size_t end) = 0;
};

struct StepContext {
  Device* device;
  Stream stream;
  Arena* saved;    ///< what forward keeps for backward; released by whoever runs the backward pass
  Arena* scratch;  ///< temporaries of one layer
  bool training = true;             ///< keep what backward needs and record amax values
  bool first_window = false;        ///< delayed scaling with current_at_first acts as current
  bool collect_statistics = false;  ///< fill the slots' statistics and samples
  GradientListener* listener = nullptr;
};

}  // namespace fp8train
