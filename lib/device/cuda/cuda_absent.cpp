#include "base/error.h"
#include "base/key_error.h"
#include "device/cuda/cuda_device.h"

namespace fp8train {

std::string why_cuda_is_unusable(int /*index*/) {
  return "this build has no CUDA backend";
}

int visible_gpus() {
  return 0;
}

std::unique_ptr<Device> make_cuda_device(int /*index*/) {
  throw Keyed<DeviceError>("device", ": cuda was asked for, but " + why_cuda_is_unusable() +
                                         "; use device: cpu or device: auto");
}

}  // namespace fp8train
