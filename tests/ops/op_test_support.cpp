#include "ops/op_test_support.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "base/content_hash.h"
#include "device/device.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"
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
  float value = 0;
  (StoredTypes{} + TypeList<int8_t>{}).with(dtype_, [&](auto tag) {
    value = decode(read(typename decltype(tag)::Type{}));
  });
  return value;
}

void Array::set(int64_t i, float value) {
  uint8_t* to = bytes_.data() + static_cast<size_t>(i) * size_of(dtype_);
  const auto write = [to](auto code) { std::memcpy(to, &code, sizeof(code)); };
  (StoredTypes{} + TypeList<int8_t>{}).with(dtype_, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (std::is_same_v<T, f16>) {
      write(encode_no_saturate<f16>(value));
    } else {
      write(encode<T>(value));
    }
  });
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
  for (const CpuIsa isa : cpu_isas()) {
    if (const ops::OpTable* table = ops::cpu::table_of(isa)) {
      tables.push_back(table);
    }
  }
  return tables;
}

#if defined(_OPENMP)
static const int threads_at_start = omp_get_max_threads();

void set_threads(int count) {
  omp_set_num_threads(count);
}
int default_threads() {
  return threads_at_start;
}
#else
void set_threads(int /*count*/) {}
int default_threads() {
  return 1;
}
#endif

double worst_difference(const Array& a, const Array& b, double relative, double absolute) {
  double worst = a.bytes().size() == b.bytes().size() ? 0.0 : INFINITY;
  const int64_t count = a.bytes().empty() || b.bytes().empty() ? 0 : b.count();
  for (int64_t i = 0; i < count; ++i) {
    const double left = a.get(i);
    const double right = b.get(i);
    if (left == right || (std::isnan(left) && std::isnan(right))) {
      continue;
    }
    const double error = std::abs(left - right) / (relative * std::abs(right) + absolute);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

namespace {

void append_line(const char* file, const Bits& bits) {
  static std::string test;
  static int count = 0;
  const std::string name = Catch::getResultCapture().getCurrentTestName();
  count = name == test ? count + 1 : 1;
  test = name;
  std::ofstream(file, std::ios::app)
      << name << ' ' << count << ' ' << bits.bytes().size() << ' '
      << content_hash(bits.bytes().data(), bits.bytes().size()) << '\n';
}

}  // namespace

bool same_everywhere(const std::function<Bits(const ops::OpTable&)>& run, bool fused) {
  const int threads_before = default_threads();
  set_threads(1);
  std::vector<const ops::OpTable*> tables = cpu_tables();
  if (fused && tables.size() > 1) {
    tables.erase(tables.begin());
  }
  const Bits expected = run(*tables.front());
  if (const char* const file = std::getenv("FP8TRAIN_BITS_FILE")) {
    append_line(file, expected);
    set_threads(threads_before);
    return true;
  }
  bool same = true;
  for (const ops::OpTable* table : tables) {
    for (const int threads : {1, 2, 3}) {
      set_threads(threads);
      same = same && run(*table) == expected;
    }
  }
  set_threads(threads_before);
  return same;
}

}  // namespace fp8train::test
