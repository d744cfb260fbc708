#pragma once
// The same call on the cpu device and on the cuda device. The cuda device is a GPU, or the host
// shim in the SHIM form; where there is neither, the whole program is skipped (cuda_main.cpp).

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "ops/op_test_support.h"
#include "tensor/tensor.h"

namespace fp8train::test {

/// One device and what a test has put there; everything is freed with the side.
class Side {
 public:
  explicit Side(Device& device) : device_(&device) {}

  Stream stream() const { return device_->stream(); }
  Device& device() const { return *device_; }

  /// A copy on the device. `offset` elements before it make it less aligned.
  View put(const Array& array, int64_t offset = 0);

  /// Memory that holds NaN bits.
  View space(DType dtype, const Shape& shape, int64_t offset = 0);

  /// A trivial value on the device.
  template <typename T>
  T* put_value(const T& value) {
    void* memory = raw(sizeof(T));
    device_->copy_from_host(memory, &value, sizeof(T));
    return static_cast<T*>(memory);
  }

  Array get(const ConstView& view) const;
  template <typename T>
  T get_value(const T* pointer) const {
    T value = {};
    device_->copy_to_host(&value, pointer, sizeof(T));
    return value;
  }

 private:
  void* raw(size_t bytes);

  Device* device_;
  std::vector<Buffer> buffers_;
};

/// Null where there is no usable GPU and no shim.
Device* cuda_device();

/// run(side) on the cpu and on the cuda device.
template <typename Run>
auto on_cpu(Run&& run) {
  static const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Side side(*device);
  return run(side);
}
template <typename Run>
auto on_cuda(Run&& run) {
  Side side(*cuda_device());
  return run(side);
}

/// Whether both devices give the same bytes; NaNs count as equal whatever their payload, since no
/// arithmetic promises it.
bool same_values(const Array& a, const Array& b);

/// Random numbers with zeros, subnormals, outliers, infinities and NaNs among them; without the
/// last two where `finite`.
std::vector<float> adversarial_values(int64_t count, uint32_t seed, bool finite = false);

}  // namespace fp8train::test
