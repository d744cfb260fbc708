#pragma once
// The stored tensors of one role (weights, gradients, a moment) for all parameters of a model.
// Those of one format lie side by side in one buffer, each from a multiple of 128 elements on
// (range_alignment), so that norms and exchanges see few arrays and no scale is shared. The gaps
// are zero and stay so.

#include <functional>
#include <vector>

#include "device/device.h"
#include "tensor/encoded.h"
#include "tensor/tensor.h"

namespace fp8train {

/// Returns the scales of a tensor of zeros, `count` fp32 values: ones, and an amax of 0 next to the
/// scale of a tensor.
std::vector<float> initial_scales(const TensorFormat& format, int64_t count);

/// Returns the alignment, in elements, of tensors, shards and chunks whose elements cross between
/// ranks as `wire` says: kRangeAlignment, or a multiple of it that the wire's groups divide, so
/// that scales do not depend on the number of ranks.
int64_t range_alignment(const TensorFormat& wire);

/// Owns the memory of stored tensors: those of one format, category and queue lie in one buffer.
class StoredPool {
 public:
  /// Adds a tensor and returns its position. Throws InternalError if is_stored_format() does not
  /// allow the format, or if the tensor's buffer has memory: all tensors are added before
  /// allocate(). Tensors of different queues do not share a buffer. A tensor without elements has a
  /// position (and the scale of a tensor) all the same. `alignment`: of the tensors of a buffer
  /// (range_alignment).
  size_t add(const TensorFormat& format, const Shape& shape, MemoryCategory category, int queue = 0,
             int64_t alignment = kRangeAlignment);

  /// Adds a position that has no tensor: at() is empty.
  void skip() { entries_.push_back({kNone, {}, 0, 0}); }

  /// How the buffers of a pool lie where the caller and not the pool decides that.
  struct Placement {
    /// Elements of a queue's buffer, of which the tensors use `used`: a multiple of 128, not less.
    std::function<int64_t(int queue, int64_t used)> elements;
    /// Memory for a queue's codes or, where codes have it, scales, with anything in it; an empty
    /// view: the pool's own. Remainders are master weights whatever the category of their codes.
    std::function<View(int queue, DType dtype, int64_t count)> memory;
  };

  /// Allocates the buffers. All values in the pool's own memory are zero afterwards: codes are 0,
  /// and scales are those of initial_scales(); the second halves of formats with a remainder are 0.
  /// A device that only counts writes nothing.
  void allocate(Device& device, const Placement& placement = {});

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  /// Returns the tensor, which is empty until allocate().
  Encoded at(size_t position) const;

  /// All codes of unscaled fp32 tensors, with the gaps: an array for each buffer that has any.
  std::vector<View> fp32() const;

  /// Whether a buffer is the pool's own memory.
  bool owns(size_t buffer) const { return !buffers_[buffer].own_codes.empty(); }
  /// The codes of a buffer as fp32 words, to be cleared (zeros whatever the scales are), without
  /// the tensors whose positions are `skipped`; positions that it does not have are not. Of these,
  /// up to three words at the end may be cleared too.
  std::vector<View> words_without(size_t buffer, const std::vector<bool>& skipped) const;
  /// The scales of a queue's buffers whose tensors have one each, [tensors, 2] in the order of
  /// their tensors.
  std::vector<View> tensor_scales(int queue) const;

  /// Tensors that lie side by side in a buffer, [begin, end) of those in it.
  struct Stretch {
    size_t buffer = 0;
    size_t begin = 0, end = 0;
  };
  size_t buffers() const { return buffers_.size(); }
  /// The positions of a buffer's tensors, as they lie.
  const std::vector<size_t>& tensors_of(size_t buffer) const { return buffers_[buffer].tensors; }
  /// Returns the queue of a buffer, as add() was given it.
  int wire_index(size_t buffer) const { return buffers_[buffer].queue; }
  /// The buffer that a tensor lies in.
  size_t buffer_of(size_t position) const { return entries_.at(position).buffer; }
  /// All of a buffer as one tensor, flat and with the gaps.
  Encoded whole(size_t buffer) const;
  /// The tensors of a stretch as one, flat and with the gaps.
  Encoded flat(const Stretch& stretch) const;
  /// Returns where the tensors of a stretch begin in flat(), in elements.
  std::vector<int64_t> begins_of(const Stretch& stretch) const;

 private:
  struct Buffer {
    TensorFormat format;
    MemoryCategory category;
    int queue = 0;
    int64_t elements = 0, scale_count = 0;
    std::vector<size_t> tensors;
    View codes, scales;
    Tensor own_codes, own_scales;  ///< none where the memory is another's
  };
  static constexpr size_t kNone = ~size_t{0};
  struct Entry {
    size_t buffer;  ///< kNone: no tensor
    Shape shape;
    int64_t first, first_scale;
  };
  Buffer& buffer_of(const TensorFormat& format, MemoryCategory category, int queue);
  static void borrow(Buffer& buffer, const Placement& placement);
  static void make(Device& device, Buffer& buffer);
  View codes_of(const Buffer& buffer, int64_t first, const Shape& shape) const;
  View scales_of(const Buffer& buffer, int64_t first, int64_t end) const;

  std::vector<Buffer> buffers_;
  std::vector<Entry> entries_;
};

}  // namespace fp8train
