#pragma once
// Allocates nothing and computes nothing: buffers are charged to the ledger and get addresses that
// are never read. What the device that is planned for holds from its start is charged too.

#include <optional>

#include "device/device.h"

namespace fp8train {

class MetaDevice final : public Device {
 public:
  explicit MetaDevice(const DeviceTraits& traits = {}, std::optional<Stream> planned = {});

  void* allocate(size_t bytes) override;
  void deallocate(void* /*pointer*/, size_t /*bytes*/) noexcept override {}
  void copy_from_host(void* /*to*/, const void* /*from*/, size_t /*bytes*/) override {}
  void copy_to_host(void* to, const void* from, size_t bytes) override;
  void fill_zero(void* /*pointer*/, size_t /*bytes*/) override {}
  void synchronize() override {}
  size_t available_memory() const override { return 0; }
  std::string description() const override { return "meta: counts, computes nothing"; }

 private:
  std::optional<Stream> planned_;  // Stream::native() of our stream
  uintptr_t next_address_ = uintptr_t{1} << 40;
};

/// The stream that a meta stream plans for, if there is one.
inline const std::optional<Stream>& planned_stream(const Stream& meta) {
  return *static_cast<const std::optional<Stream>*>(meta.native());
}

}  // namespace fp8train
