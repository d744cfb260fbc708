#pragma once
// The kept tensors of one role (weights, gradients, a moment) for all parameters of a model. Those
// of one format lie side by side in one buffer, each from a multiple of 64 elements on, so that
// norms and exchanges see few arrays. The gaps are zero and stay so.

#include <vector>

#include "device/device.h"
#include "tensor/stored_tensor.h"
#include "tensor/tensor.h"

namespace fp8train {

class StoredPool {
 public:
  /// The position of the tensor, which is_stored_format() must allow. Before allocate().
  size_t add(const TensorFormat& format, const Shape& shape, MemoryCategory category);

  /// Everything is zero afterwards.
  void allocate(Device& device);

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  /// Empty until allocate().
  StoredTensor at(size_t position) const;

  /// All codes of unscaled fp32 tensors, with the gaps; no memory if there are none.
  View fp32() const;

  /// The codes of all formats, each as fp32 words, to be cleared: zeros whatever the scales are.
  std::vector<View> words() const;

 private:
  struct Buffer {
    TensorFormat format;
    MemoryCategory category;
    int64_t elements = 0, scale_count = 0;
    Tensor codes, scales;
  };
  struct Entry {
    size_t buffer;
    Shape shape;
    int64_t first, first_scale;
  };
  Buffer& buffer_of(const TensorFormat& format, MemoryCategory category);

  std::vector<Buffer> buffers_;
  std::vector<Entry> entries_;
};

}  // namespace fp8train
