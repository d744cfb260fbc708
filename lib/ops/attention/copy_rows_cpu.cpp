#include "ops/attention/copy_rows.h"

#include <cstring>

#include "ops/dispatch/cpu_operations.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

void copy_rows(Stream /*stream*/, const RowCopy& call) {
  const int64_t middle = call.extents[1];
  const int64_t inner = call.extents[2];
  const auto element = static_cast<int64_t>(size_of(call.dtype));
  const auto bytes = static_cast<size_t>(call.width * element);
  const auto offset = [&](const std::array<int64_t, 3>& strides, int64_t row) {
    return element * (row / inner / middle * strides[0] + row / inner % middle * strides[1] +
                      row % inner * strides[2]);
  };
  const int64_t rows = call.extents[0] * middle * inner;
#pragma omp parallel for schedule(static) if (rows * call.width >= kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<char*>(call.to) + offset(call.to_strides, row),
                static_cast<const char*>(call.from) + offset(call.from_strides, row), bytes);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
