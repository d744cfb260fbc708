#include "ops/op_test_support.h"

#include <random>

#include "device/device.h"
#include "numeric/convert.h"
#include "ops/dispatch/cpu_operations.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace fp8train::test {

Array::Array(DType dtype, const Shape& shape, const std::vector<float>& values)
    : Array(dtype, shape) {
  for (int64_t i = 0; i < count(); ++i) {
    set(i, values[static_cast<size_t>(i)]);
  }
}

float Array::get(int64_t i) const {
  const uint8_t* from = bytes_.data() + static_cast<size_t>(i) * size_of(dtype_);
  const auto read = [from]<typename T>(T value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (dtype_) {
    case DType::f32:
      return read(float{});
    case DType::bf16:
      return decode(read(bf16{}));
    case DType::f16:
      return decode(read(f16{}));
    case DType::e4m3:
      return decode(read(e4m3{}));
    case DType::e5m2:
      return decode(read(e5m2{}));
    case DType::i8:
      return decode(read(int8_t{}));
    default:
      return 0.0F;
  }
}

void Array::set(int64_t i, float value) {
  uint8_t* to = bytes_.data() + static_cast<size_t>(i) * size_of(dtype_);
  const auto write = [to](auto code) { std::memcpy(to, &code, sizeof(code)); };
  switch (dtype_) {
    case DType::f32:
      return write(value);
    case DType::bf16:
      return write(encode<bf16>(value));
    case DType::f16:
      return write(encode_no_saturate<f16>(value));
    case DType::e4m3:
      return write(encode<e4m3>(value));
    case DType::e5m2:
      return write(encode<e5m2>(value));
    case DType::i8:
      return write(encode<int8_t>(value));
    default:
      return;
  }
}

std::vector<float> Array::values() const {
  std::vector<float> result;
  for (int64_t i = 0; i < count(); ++i) {
    result.push_back(get(i));
  }
  return result;
}

std::vector<float> random_values(int64_t count, uint32_t seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

Stream cpu_stream() {
  static const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  return device->stream();
}

std::vector<const ops::OpTable*> cpu_tables() {
  std::vector<const ops::OpTable*> tables;
  for (const CpuIsa isa : {CpuIsa::baseline, CpuIsa::v3, CpuIsa::v4}) {
    if (const ops::OpTable* table = ops::cpu::table_of(isa)) {
      tables.push_back(table);
    }
  }
  return tables;
}

#if defined(_OPENMP)
void set_threads(int count) {
  omp_set_num_threads(count);
}
int default_threads() {
  static const int count = omp_get_max_threads();
  return count;
}
#else
void set_threads(int /*count*/) {}
int default_threads() {
  return 1;
}
#endif

bool same_everywhere(const std::function<Bits(const ops::OpTable&)>& run) {
  const int threads_before = default_threads();
  set_threads(1);
  const Bits expected = run(*cpu_tables().front());
  bool same = true;
  for (const ops::OpTable* table : cpu_tables()) {
    for (const int threads : {1, 2, 3}) {
      set_threads(threads);
      same = same && run(*table) == expected;
    }
  }
  set_threads(threads_before);
  return same;
}

}  // namespace fp8train::test
