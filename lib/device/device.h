#pragma once
// A Device owns memory and the main compute stream. cpu computes on host memory; meta hands out
// addresses that must never be read and only counts; cuda is asked for here too and refused with
// one clear error if it is not built in or not usable.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "device/fp8_products.h"
#include "device/memory_ledger.h"
#include "device/stream.h"

namespace fp8train {

/// The facts about a kind of device that decide the layout of tensors. meta has those of the device
/// that it plans for.
struct DeviceTraits {
  /// An FP8 GEMM reads both operands along K only, so that a tensor which is contracted along its
  /// rows is stored transposed too (cuBLASLt's TN rule up to compute capability 9.0).
  bool fp8_gemm_along_k_only = false;
  /// FP8 products are cuBLASLt's, those of `fp8_products` and under the conditions of
  /// ops/gemm/gemm_support.h; other products with a scale for each block, and other shapes, are
  /// computed from dequantized operands, which takes scratch memory; other products with one scale
  /// for each operand do not exist. False: they are the backend's own, of every kind.
  bool fp8_gemm_by_library = false;
  Fp8Products fp8_products = Fp8Products(Fp8Support::any);
  /// Says which shapes of those products it refuses; null: none. It lives as long as the device.
  Fp8Library* fp8_library = nullptr;
  /// The largest head dimension that attention has kernels for.
  int64_t max_head_dim = 512;
  /// Bytes of memory of a GPU; 0: not a GPU, or not known.
  size_t memory = 0;
  /// The bytes that the device itself reserves for library calls at its start.
  size_t library_workspace = 0;

  bool operator==(const DeviceTraits&) const = default;
};

/// Operations that were recorded from the stream of a device, which outlives the recording.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Starts the recorded operations, in stream order. Throws DeviceError.
  virtual void replay() = 0;
};

/// A point in the work of a stream. The device that made it outlives it.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  /// Moves the event behind all work that has been submitted to `stream`.
  virtual void record(const Stream& stream) = 0;
  /// Makes work that is submitted to `stream` from now on run after the event. The host does not
  /// wait.
  virtual void hold(const Stream& stream) = 0;
  /// Whether the work before the event is done. Any thread may ask. Throws DeviceError if that work
  /// failed.
  virtual bool reached() = 0;
};

/// A device: its memory, its stream and its recordings.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceKind kind() const { return stream_.kind(); }
  Stream stream() const { return stream_; }
  /// Returns a second stream, whose work runs concurrently with that of the first; StreamEvents
  /// order the two. Products and attention run on the first only. On devices whose work is done
  /// when a call returns (cpu, meta) it is the first stream.
  virtual Stream side_stream() { return stream_; }
  /// Returns a third stream, for copies between the device and the host.
  virtual Stream copy_stream() { return stream_; }
  /// Makes an event, which is reached until record() is called. Throws DeviceError.
  virtual std::unique_ptr<StreamEvent> make_event();
  const DeviceTraits& traits() const { return traits_; }
  /// Sets facts that only a trial at start-up shows (ops::probe_gemms).
  void set_traits(const DeviceTraits& traits) { traits_ = traits; }
  MemoryLedger& ledger() { return ledger_; }
  OpCounters& counters() { return counters_; }

  /// Allocates uninitialized memory, 256-byte aligned; zero bytes give nullptr. Throws DeviceError,
  /// which names the bytes requested and in use, if memory is short. Use Buffer as the owner.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* pointer, size_t bytes) noexcept = 0;
  /// The same for memory of the host, which work of the device's streams reads and writes through
  /// its link as if it were the device's.
  virtual void* allocate_on_host(size_t bytes) { return allocate(bytes); }
  virtual void deallocate_on_host(void* pointer, size_t bytes) noexcept {
    deallocate(pointer, bytes);
  }

  /// Copy between host memory and memory of the device, also in allocate_on_host(), in stream
  /// order. `from` of copy_from_host() may change
  /// once it has returned; copy_to_host() waits for the stream. On meta it writes zeros. Both throw
  /// DeviceError.
  virtual void copy_from_host(void* to, const void* from, size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, size_t bytes) = 0;
  /// Copies between memory of the device and that of allocate_on_host(), in the order of `stream`.
  /// Throws DeviceError.
  virtual void copy(const Stream& stream, void* to, const void* from, size_t bytes) = 0;
  /// Sets bytes to zero, in stream order. Throws DeviceError.
  virtual void fill_zero(void* pointer, size_t bytes) = 0;
  /// Waits for the work of the stream. Throws DeviceError if it has failed.
  virtual void synchronize() = 0;

  /// Whether the device supports record().
  virtual bool records() const { return false; }
  /// Takes the operations that `work` submits to the stream without running them. `work` must not
  /// allocate, wait, or copy to or from the host; see device/recording.h. Throws DeviceError;
  /// InternalError unless records().
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work);

  /// Returns the bytes that could be allocated now, or 0 if that is not known.
  virtual size_t available_memory() const = 0;

  /// Returns an id that no other GPU of its machine has (its bus address); empty if it is not a
  /// GPU.
  virtual std::string hardware_id() const { return {}; }

  /// Returns a text such as "cpu: Intel Xeon, 2 threads, avx512".
  virtual std::string description() const = 0;

 protected:
  explicit Device(DeviceKind kind, void* native = nullptr, const DeviceTraits& traits = {})
      : stream_(kind, native, &counters_), traits_(traits) {}

 private:
  OpCounters counters_;
  Stream stream_;
  DeviceTraits traits_;
  MemoryLedger ledger_;
};

/// Makes a device. `index`: which of the GPUs that this process sees. Throws DeviceError, saying
/// why and what to do, when the device cannot be used.
std::unique_ptr<Device> make_device(DeviceKind kind, int index = 0);

/// Makes a meta device that plans for devices with `traits`.
std::unique_ptr<Device> make_meta_device(const DeviceTraits& traits);
/// Makes a meta device that plans for `planned`, which outlives it and which it asks for facts that
/// are not traits, such as the memory that a library needs for an operation.
std::unique_ptr<Device> make_meta_device(const Device& planned);

/// Owns bytes of a device, which are charged to a category: those of categories
/// that are the host's are in its memory. Movable. Never throws on destruction.
class Buffer {
 public:
  Buffer() = default;
  /// Allocates uninitialized memory on `device`, which outlives the buffer. Throws DeviceError.
  Buffer(Device& device, size_t bytes, MemoryCategory category);
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void reset() noexcept;

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(category_, other.category_);
  }

  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryCategory category_ = MemoryCategory::workspace;
};

}  // namespace fp8train
