#include "engine/gemm_rate.h"

#include <algorithm>

#include "base/clock.h"
#include "base/philox.h"
#include "ops/gemm/gemm.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

/// The last samples of a size count.
constexpr size_t kMaxSamples = 1000;
/// No multiple of a row's length, so that rows differ; what is copied of it is aligned to 32 bytes.
constexpr size_t kDrawn = (size_t{1} << 20) + 8;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double flops_of(int64_t rows) {
  const auto size = static_cast<double>(rows);
  return 2 * size * size * size;
}

}  // namespace

std::vector<float> uniform_values(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const size_t drawn = std::min(values.size(), kDrawn);
  for (size_t i = 0; i < drawn; i += 4) {
    const PhiloxBlock bits = philox(1, 0, i / 4);
    for (size_t j = i; j < std::min(i + 4, drawn); ++j) {
      values[j] = 2.0F * uniform_from_bits(bits.word[j - i]) - 1.0F;
    }
  }
  for (size_t done = drawn; done < values.size();) {
    const size_t some = std::min(drawn, values.size() - done);
    std::copy_n(values.begin(), some, values.begin() + static_cast<int64_t>(done));
    done += some;
  }
  return values;
}

void fill_uniform(Device& device, View y) {
  const int64_t count = y.shape.count();
  const auto drawn = std::min(count, static_cast<int64_t>(kDrawn));
  const std::vector<float> values = uniform_values(drawn);
  const Tensor source(device, DType::f32, {drawn}, MemoryCategory::workspace);
  copy_from_host(device, source, values.data());
  for (int64_t done = 0; done < count; done += drawn) {
    const Shape some = {std::min(drawn, count - done)};
    char* const to = static_cast<char*>(y.data) + static_cast<size_t>(done) * size_of(y.dtype);
    ops::cast(device.stream(), View{source.view().data, DType::f32, some}, View{to, y.dtype, some});
  }
  device.synchronize();  // before the source is freed
}

GemmRate::GemmRate(Device& device, DType dtype, const std::vector<int64_t>& sizes, int at_once)
    : device_(&device), at_once_(at_once) {
  for (const int64_t size : sizes) {
    sizes_.push_back({size, {}});
  }
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  const Shape shape = {largest, largest};
  a_ = Tensor(device, dtype, shape, MemoryCategory::workspace);
  b_ = Tensor(device, dtype, shape, MemoryCategory::workspace);
  c_ = Tensor(device, DType::f32, shape, MemoryCategory::workspace);
  fill_uniform(device, a_.view());
  fill_uniform(device, b_.view());
}

void GemmRate::measure() {
  const Stopwatch whole;
  Size& size = sizes_[next_];
  next_ = (next_ + 1) % sizes_.size();
  const auto square = [&](const Tensor& of) {
    return View{of.view().data, of.view().dtype, {size.rows, size.rows}};
  };
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) {
      ops::gemm(device_->stream(), {.a = {square(a_)}, .b = {square(b_), true}, .c = square(c_)});
    }
    device_->synchronize();
  };
  if (size.seconds.empty()) {
    run(1);
  }
  const Stopwatch watch;
  run(at_once_);
  if (size.seconds.size() == kMaxSamples) {
    size.seconds.erase(size.seconds.begin());
  }
  size.seconds.push_back(watch.seconds() / at_once_);
  highest_ = std::max(highest_, flops_of(size.rows) / size.seconds.back());
  spent_ += whole.seconds();
}

double GemmRate::flops_per_second() const {
  double best = 0;
  for (const Size& size : sizes_) {
    if (!size.seconds.empty()) {
      best = std::max(best, flops_of(size.rows) / median(size.seconds));
    }
  }
  return best;
}

}  // namespace fp8train
