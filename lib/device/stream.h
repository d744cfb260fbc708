#pragma once
// A Stream is the queue of an operation: a device kind, the device's native queue, and for meta the
// counters that replace work. A non-owning, copyable handle; the Device that made it outlives it.
// Work on one stream runs in order and may be asynchronous (cuda); on cpu and meta it is done when
// the call returns.

#include <cstdint>
#include <string_view>

namespace fp8train {

enum class DeviceKind : uint8_t { cpu, cuda, meta };

std::string_view name_of(DeviceKind kind);

/// The counters of the meta device, which counts and does not compute.
struct OpCounters {
  double gemm_flops = 0;       ///< 2 * M * N * K of every GEMM
  double gemm_flops_8bit = 0;  ///< those of them whose operands both have 8 bits
  double attention_flops = 0;  ///< the causal half only
  double bytes = 0;            ///< read and written by all operations
  uint64_t operations = 0;
};

class Stream {
 public:
  Stream(DeviceKind kind, void* native, OpCounters* counters)
      : native_(native), counters_(counters), kind_(kind) {}

  DeviceKind kind() const { return kind_; }
  void* native() const { return native_; }
  OpCounters& counters() const { return *counters_; }

 private:
  void* native_;
  OpCounters* counters_;
  DeviceKind kind_;
};

}  // namespace fp8train
