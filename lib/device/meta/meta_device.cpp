#include "device/meta/meta_device.h"

#include <cstring>

namespace fp8train {

MetaDevice::MetaDevice(const DeviceTraits& traits, std::optional<Stream> planned)
    : Device(DeviceKind::meta, &planned_, traits), planned_(planned) {
  if (traits.library_workspace > 0) {
    ledger().add(MemoryCategory::workspace, traits.library_workspace);
  }
}

void* MetaDevice::allocate(size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  const uintptr_t address = next_address_;
  next_address_ += (bytes + 255) / 256 * 256;
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void MetaDevice::copy_to_host(void* to, const void* /*from*/, size_t bytes) {
  std::memset(to, 0, bytes);
}

}  // namespace fp8train
