#pragma once
// Allocates nothing and computes nothing: buffers are charged to the ledger and get addresses that
// are never read.

#include "device/device.h"

namespace fp8train {

class MetaDevice final : public Device {
 public:
  explicit MetaDevice(const DeviceTraits& traits = {})
      : Device(DeviceKind::meta, nullptr, traits) {}

  void* allocate(size_t bytes) override;
  void deallocate(void* /*pointer*/, size_t /*bytes*/) noexcept override {}
  void copy_from_host(void* /*to*/, const void* /*from*/, size_t /*bytes*/) override {}
  void copy_to_host(void* to, const void* from, size_t bytes) override;
  void fill_zero(void* /*pointer*/, size_t /*bytes*/) override {}
  void synchronize() override {}
  size_t available_memory() const override { return 0; }
  std::string description() const override { return "meta: counts, computes nothing"; }

 private:
  uintptr_t next_address_ = uintptr_t{1} << 40;
};

}  // namespace fp8train
