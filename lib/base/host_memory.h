#pragma once
// Host memory that is reused for content of the same size: no page is touched before it is written,
// and none is released in between.

#include <cstddef>
#include <memory>

namespace fp8train {

class HostMemory {
 public:
  /// `bytes` bytes, uninitialized, aligned for any scalar; what was there before stays only where
  /// the size is the same.
  void* resize(size_t bytes) {
    if (bytes != bytes_) {
      data_.reset();
      bytes_ = 0;
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      bytes_ = bytes;
    }
    return data_.get();
  }
  void* data() { return data_.get(); }
  const void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
};

}  // namespace fp8train
