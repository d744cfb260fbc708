#include "device/device.h"

#include "base/error.h"
#include "base/names.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "device/device_choice.h"
#include "device/meta/meta_device.h"

namespace fp8train {

std::string_view name_of(DeviceKind kind) {
  static constexpr std::string_view kNames[] = {"cpu", "cuda", "meta"};
  static_assert(std::size(kNames) == static_cast<size_t>(DeviceKind::meta) + 1);
  return kNames[static_cast<size_t>(kind)];
}

DeviceChoice device_choice_named(std::string_view name) {
  if (const auto choice = value_in(kDeviceChoices, name)) {
    return *choice;
  }
  throw ConfigError("Unknown device '" + std::string(name) + "' (expected auto, cpu, cuda)");
}

namespace {

/// The event of streams whose work is done when a call returns.
class PastEvent final : public StreamEvent {
 public:
  void record(const Stream& /*stream*/) override {}
  void hold(const Stream& /*stream*/) override {}
  bool reached() override { return true; }
};

}  // namespace

std::unique_ptr<StreamEvent> Device::make_event() {
  return std::make_unique<PastEvent>();
}

std::unique_ptr<Recording> Device::record(const std::function<void()>& /*work*/) {
  throw InternalError("this device does not record");
}

std::unique_ptr<Device> make_device(DeviceKind kind, int index) {
  switch (kind) {
    case DeviceKind::cpu:
      return std::make_unique<CpuDevice>();
    case DeviceKind::meta:
      return std::make_unique<MetaDevice>();
    case DeviceKind::cuda:
      return make_cuda_device(index);
  }
  throw InternalError("unknown device kind");
}

std::unique_ptr<Device> make_meta_device(const DeviceTraits& traits) {
  return std::make_unique<MetaDevice>(traits);
}

std::unique_ptr<Device> make_meta_device(const Device& planned) {
  return std::make_unique<MetaDevice>(planned.traits(), planned.stream());
}

Buffer::Buffer(Device& device, size_t bytes, MemoryCategory category)
    : device_(&device),
      data_(is_on_host(category) ? device.allocate_on_host(bytes) : device.allocate(bytes)),
      bytes_(bytes),
      category_(category) {
  device_->ledger().add(category_, bytes_);
}

void Buffer::reset() noexcept {
  if (device_ == nullptr) {
    return;
  }
  if (is_on_host(category_)) {
    device_->deallocate_on_host(data_, bytes_);
  } else {
    device_->deallocate(data_, bytes_);
  }
  device_->ledger().remove(category_, bytes_);
  device_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace fp8train
