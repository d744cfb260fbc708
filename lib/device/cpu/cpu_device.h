#pragma once
// Host memory and threads. It is the specification: its FP8 codes and scales are those that a GPU
// would hold.

#include "device/device.h"

namespace fp8train {

class CpuDevice final : public Device {
 public:
  CpuDevice() : Device(DeviceKind::cpu) {}

  void* allocate(size_t bytes) override;
  void deallocate(void* pointer, size_t bytes) noexcept override;
  void copy_from_host(void* to, const void* from, size_t bytes) override;
  void copy_to_host(void* to, const void* from, size_t bytes) override;
  void copy(const Stream& /*stream*/, void* to, const void* from, size_t bytes) override {
    copy_to_host(to, from, bytes);
  }
  void fill_zero(void* pointer, size_t bytes) override;
  void synchronize() override {}
  size_t available_memory() const override;
  std::string description() const override;
};

}  // namespace fp8train
