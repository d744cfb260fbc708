#pragma once
// Host arrays of any element type, and runs of one operation at every CPU level and thread count.

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ops/dispatch/op_table.h"
#include "tensor/encoded.h"
#include "tensor/view.h"

namespace fp8train::test {

/// Elements of one type; values go in and out as fp32, rounded to nearest even.
class Array {
 public:
  Array() = default;
  Array(DType dtype, const Shape& shape)
      : dtype_(dtype), shape_(shape), bytes_(storage_bytes(dtype, shape)) {}
  Array(DType dtype, const Shape& shape, const std::vector<float>& values);

  View view() { return {bytes_.data(), dtype_, shape_}; }
  operator View() { return view(); }       // NOLINT(google-explicit-constructor)
  operator ConstView() { return view(); }  // NOLINT(google-explicit-constructor)
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  DType dtype() const { return dtype_; }
  int64_t count() const { return shape_.count(); }
  float get(int64_t i) const;
  void set(int64_t i, float value);
  std::vector<float> values() const;
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  DType dtype_ = DType::f32;
  Shape shape_;
  std::vector<uint8_t> bytes_;
};

/// Standard normal numbers.
std::vector<float> random_values(int64_t count, uint32_t seed, float deviation = 1.0F);

/// The float types with their relative rounding error (half a unit in the last place).
struct FloatType {
  DType dtype;
  double rounding;
};
inline constexpr FloatType kFloatTypes[] = {
    {DType::f32, 0x1p-24}, {DType::bf16, 0x1p-8}, {DType::f16, 0x1p-11}};

/// The stream of the process's cpu device.
Stream cpu_stream();

/// Cpu tables of the levels that this build has and this machine runs.
std::vector<const ops::OpTable*> cpu_tables();

void set_threads(int count);
int default_threads();

/// Collects the bytes that a run produced, to compare runs bit by bit.
class Bits {
 public:
  void add(const Array& array) {
    bytes_.insert(bytes_.end(), array.bytes().begin(), array.bytes().end());
  }
  template <typename T>
  void add_value(const T& value) {
    const size_t before = bytes_.size();
    bytes_.resize(before + sizeof(T));
    std::memcpy(bytes_.data() + before, &value, sizeof(T));
  }
  bool operator==(const Bits&) const = default;
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

/// A matrix that shares one scale, by what its codes are multiplied by.
inline Encoded with_tensor_scale(const View& codes, float* tensor_scale) {
  Encoded tensor = codes;
  tensor.tensor_scale = tensor_scale;
  return tensor;
}

/// A matrix with a scale for each block, and what a cast multiplies values by.
inline Encoded with_cast_scales(const View& codes, const TensorFormat& format, const View& scales,
                                float* cast_scales, ScaleLayout layout = ScaleLayout::row_major) {
  Encoded tensor(codes, format, scales, layout);
  tensor.cast_scales = cast_scales;
  return tensor;
}

/// Gives both orientations of a cast with one scale its format and its scalars.
inline void set_tensor_cast(QuantizedTensor& out, const TensorFormat& format, float* cast_scale,
                            float* tensor_scale) {
  out.set(&Encoded::format, format);
  out.set(&Encoded::cast_scales, cast_scale);
  out.set(&Encoded::tensor_scale, tensor_scale);
}

/// Largest |a - b| / (relative * |b| + absolute): at most 1 passes. NaN on one side only gives
/// infinity.
double worst_difference(const Array& a, const Array& b, double relative, double absolute);

/// Whether `run` gives the same bits at every level with 1, 2 and 3 threads. Where
/// FP8TRAIN_BITS_FILE is set: true, after one run, of which the file gets a line (the test's name,
/// the number of the run, its bytes and their hash), so that builds for different processors can be
/// compared (scripts/checks/aarch64.sh). `fused`: without the lowest of several levels, which has
/// no fused multiply-add.
bool same_everywhere(const std::function<Bits(const ops::OpTable&)>& run, bool fused = false);

}  // namespace fp8train::test
