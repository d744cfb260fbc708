#include "ops/cuda/cuda_test_support.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace fp8train::test {

void* Side::raw(size_t bytes) {
  buffers_.emplace_back(*device_, bytes, MemoryCategory::workspace);
  return buffers_.back().data();
}

View Side::space(DType dtype, const Shape& shape, int64_t offset) {
  const size_t before = storage_bytes(dtype, {offset});
  const size_t bytes = storage_bytes(dtype, shape);
  char* memory = static_cast<char*>(raw(before + bytes));
  if (memory == nullptr) {
    return {nullptr, dtype, shape};
  }
  const std::vector<uint8_t> poison(bytes, 0xFF);
  device_->copy_from_host(memory + before, poison.data(), bytes);
  return {memory + before, dtype, shape};
}

View Side::put(const Array& array, int64_t offset) {
  Array copy = array;
  const View view = space(array.dtype(), copy.view().shape, offset);
  device_->copy_from_host(view.data, array.bytes().data(), array.bytes().size());
  return view;
}

Array Side::get(const ConstView& view) const {
  Array array(view.dtype, view.shape);
  device_->copy_to_host(array.as<uint8_t>(), view.data, array.bytes().size());
  return array;
}

Device* cuda_device() {
  static const std::unique_ptr<Device> device = [] {
    try {
      return make_device(DeviceKind::cuda);
    } catch (const DeviceError&) {
      return std::unique_ptr<Device>();
    }
  }();
  return device.get();
}

bool same_values(const Array& a, const Array& b) {
  if (a.dtype() != b.dtype() || a.bytes().size() != b.bytes().size()) {
    return false;
  }
  if (a.bytes() == b.bytes()) {
    return true;
  }
  const size_t size = size_of(a.dtype());
  for (int64_t i = 0; i < a.count(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    const bool equal = std::memcmp(a.bytes().data() + at, b.bytes().data() + at, size) == 0;
    if (!equal && !(std::isnan(a.get(i)) && std::isnan(b.get(i)))) {
      return false;
    }
  }
  return true;
}

std::vector<float> adversarial_values(int64_t count, uint32_t seed, bool finite) {
  std::vector<float> values = random_values(count, seed);
  const float special[] = {0.0F,   -0.0F,  1e-40F,   -1e-42F,  6e4F,      -3e38F,
                           1e-20F, 448.0F, 57344.0F, INFINITY, -INFINITY, NAN};
  const size_t kinds = finite ? 9 : 12;
  for (size_t i = 0; i < values.size(); i += 7) {
    values[i] = special[(i / 7 + seed) % kinds];
  }
  return values;
}

}  // namespace fp8train::test
