#pragma once
// What a layer needs to run: the device and its stream, the two arenas of the step, and what kind
// of pass this is. Layers never allocate elsewhere and never read anything back.

#include "device/arena.h"
#include "device/device.h"

namespace fp8train {

struct StepContext {
  Device* device;
  Stream stream;
  Arena* saved;    ///< what forward keeps for backward; released by whoever runs the backward pass
  Arena* scratch;  ///< temporaries of one layer
  bool training = true;             ///< keep what backward needs and record amax values
  bool first_window = false;        ///< delayed scaling with current_at_first acts as current
  bool collect_statistics = false;  ///< fill the slots' statistics and samples
};

}  // namespace fp8train
