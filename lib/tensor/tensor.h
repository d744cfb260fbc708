#pragma once
// Owning tensors, and views placed in an arena.

#include <vector>

#include "device/arena.h"
#include "device/device.h"
#include "tensor/view.h"

namespace fp8train {

/// A tensor that owns its memory on a device.
class Tensor {
 public:
  Tensor() = default;
  /// Allocates uninitialized memory on `device`, which outlives the tensor. Throws DeviceError.
  Tensor(Device& device, DType dtype, const Shape& shape, MemoryCategory category);

  View view() const { return {buffer_.data(), dtype_, shape_}; }
  operator View() const { return view(); }       // NOLINT(google-explicit-constructor)
  operator ConstView() const { return view(); }  // NOLINT(google-explicit-constructor)
  bool empty() const { return buffer_.data() == nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }

 private:
  Buffer buffer_;
  DType dtype_ = DType::f32;
  Shape shape_;
};

/// Returns an uninitialized view in the arena, valid until the arena is released to an earlier
/// mark. Throws InternalError when the arena is full.
View allocate(Arena& arena, DType dtype, const Shape& shape);

/// Copy between host memory and device views, view.bytes() bytes in stream order. Reading waits for
/// the device. to_host_f32() throws InternalError for another type than fp32.
std::vector<float> to_host_f32(Device& device, const ConstView& view);
void copy_from_host(Device& device, const View& to, const void* from);
void copy_to_host(Device& device, void* to, const ConstView& from);
void fill_zero(Device& device, const View& view);

}  // namespace fp8train
