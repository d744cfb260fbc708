#pragma once
// The rate of large products on a device, measured between the steps of a training: `bench step`
// and the MFU of a CPU compare steps with it. A product is finished when a call returns.

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace fp8train {

/// Returns uniform values in [-1, 1), a million of them drawn and then repeated: drawing billions
/// would take longer than what is measured.
std::vector<float> uniform_values(int64_t count);

/// Writes uniform_values() into y (fp32, bf16 or fp16), drawn and sent to the device once.
void fill_uniform(Device& device, View y);

/// Times square products with operands of one type and fp32 sums.
class GemmRate {
 public:
  /// Allocates operands and result of the largest size. `at_once`: products that are timed as one
  /// piece of work, so that their launches and the wait for them hardly count. `device` outlives
  /// the object. Throws DeviceError if there is no memory for them.
  GemmRate(Device& device, DType dtype, const std::vector<int64_t>& sizes, int at_once = 1);

  /// Times products of the first size, at the next call of the second, and so on. The first product
  /// of a size is run before, untimed.
  void measure();
  /// Returns the FLOPs per second of the size for which their median is highest; 0: nothing was
  /// measured.
  double flops_per_second() const;
  /// Returns those of the fastest product of all.
  double highest_flops_per_second() const { return highest_; }
  /// Returns how often the size that was timed least often was timed.
  size_t samples() const { return sizes_.back().seconds.size(); }
  /// Returns the seconds that all calls of measure() have taken.
  double seconds() const { return spent_; }

 private:
  struct Size {
    int64_t rows;
    std::vector<double> seconds;  ///< of a product
  };

  Device* device_;
  int at_once_;
  std::vector<Size> sizes_;
  size_t next_ = 0;
  double spent_ = 0, highest_ = 0;
  Tensor a_, b_, c_;
};

}  // namespace fp8train
