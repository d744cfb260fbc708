#include "device/arena.h"

#include "base/error.h"
#include "base/math.h"

namespace fp8train {
namespace {

constexpr size_t kAlignment = 256;

size_t align_up(size_t bytes) {
  return round_up(bytes, kAlignment);
}

}  // namespace

void Arena::reserve(size_t bytes) {
  check(used_ == 0, "an arena in use cannot be resized");
  buffer_.reset();
  buffer_ = Buffer(*device_, align_up(bytes), category_);
}

void* Arena::allocate(size_t bytes) {
  const size_t offset = used_;
  used_ += align_up(bytes);
  high_water_ = std::max(high_water_, used_);
  if (device_->kind() == DeviceKind::meta) {
    return device_->allocate(bytes);
  }
  check(used_ <= buffer_.bytes(), "the step asks for more memory than its plan on the meta device");
  return static_cast<char*>(buffer_.data()) + offset;
}

bool Arena::has(size_t bytes) const {
  return bytes > 0 &&
         (device_->kind() == DeviceKind::meta || used_ + align_up(bytes) <= buffer_.bytes());
}

}  // namespace fp8train
