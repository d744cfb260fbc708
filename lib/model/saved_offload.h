#pragma once
// Has the activations that blocks store for backward in memory of the host, from the end of a
// block's forward pass to the begin of its backward pass. On the device there is memory for two
// blocks, one for even numbers and one for odd ones: an activation is at the same address in both
// passes. Copies run in a stream of their own while other blocks compute; those of the last two
// blocks are not moved. One thread uses it, for one micro-batch at a time, whose blocks run forward
// in order and then backward.

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "device/arena.h"
#include "device/device.h"

namespace fp8train {

class SavedOffload {
 public:
  /// `blocks`: those that run backward.
  SavedOffload(Device& device, size_t blocks);

  /// Bytes of a block on the device, while it runs forward, and after it, which are moved.
  struct Bytes {
    size_t at_most = 0, stored = 0;
  };
  /// Reserves memory on the device and the host. Throws DeviceError.
  void reserve(const Bytes& of_block);
  Bytes high_water() const;

  /// Returns the memory for what a block stores, to be used in the order of `stream`.
  Arena& begin_forward(const Stream& stream, size_t block);
  void end_forward(const Stream& stream, size_t block);
  void begin_backward(const Stream& stream, size_t block);
  void end_backward(const Stream& stream, size_t block);

 private:
  struct Window {
    Arena arena;
    std::unique_ptr<StreamEvent> copied;  ///< behind the last copy from or to it
  };
  Window& window_of(size_t block) { return windows_[block % windows_.size()]; }
  bool is_moved(size_t block) const { return block + windows_.size() < used_.size(); }
  void* on_host(size_t block) const;
  /// Copies once the work in `stream` is done.
  void copy(const Stream& stream, Window& window, void* to, const void* from, size_t bytes);

  Device* device_;
  Stream side_;
  std::unique_ptr<StreamEvent> done_;
  std::array<Window, 2> windows_;
  std::vector<size_t> used_;  ///< bytes of each block in the last pass
  size_t most_ = 0;           ///< that a block has used in any pass
  size_t stored_ = 0;         ///< Bytes::stored, as reserved
  Buffer host_;
};

}  // namespace fp8train
