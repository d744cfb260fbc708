#pragma once
// A device of the shim that claims another compute capability. Only in the SHIM form.

#include <memory>

#include "cublaslt_fake.h"
#include "cublaslt_faults.h"
#include "cuda_runtime_api.h"
#include "device/device.h"

namespace fp8train::test {

/// The shim as another chip.
class Chip {
 public:
  explicit Chip(int capability) {
    shim::set_capability(capability);
    device = make_device(DeviceKind::cuda);
  }
  ~Chip() {
    device.reset();
    shim::set_capability(90);
    shim::ignore_scales(false);
    shim::faults() = {};
    shim::answer_products(nullptr);
    shim::break_gpu(cudaSuccess);
  }
  Chip(const Chip&) = delete;
  Chip& operator=(const Chip&) = delete;

  std::unique_ptr<Device> device;
};

}  // namespace fp8train::test
