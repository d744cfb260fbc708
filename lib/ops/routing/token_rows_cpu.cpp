// Compiled once per CPU level. One thread works on a row.

#include "ops/dispatch/cpu_operations.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// y = weight * x.
template <typename X>
FP8TRAIN_HD void write_row(const X* __restrict x, float weight, X* __restrict y, int64_t count) {
  for (int64_t c = 0; c < count; ++c) {
    store_from_float(y + c, weight * load_as_float(x + c));
  }
}

/// sum += weight * x.
template <typename X>
FP8TRAIN_HD void add_row(const X* __restrict x, float weight, float* __restrict sum,
                         int64_t count) {
  for (int64_t c = 0; c < count; ++c) {
    sum[c] += weight * load_as_float(x + c);
  }
}

/// Columns [begin, begin + count) of a row; count <= kChunk.
template <typename X>
FP8TRAIN_HD void return_row(const ReturnedRows& call, int64_t row, int64_t begin, int64_t count) {
  const int64_t width = call.y.shape.back();
  const int64_t per_token = call.slots.shape.back();
  X* const y = call.y.as<X>() + row * width + begin;
  float sum[kChunk];
  for (int64_t c = 0; c < count; ++c) {
    sum[c] = call.adds ? load_as_float(y + c) : 0.0F;
  }
  if (!call.addend.empty()) {
    add_row(call.addend.as<float>() + row * width + begin, 1.0F, sum, count);
  }
  for (int64_t j = row * per_token; j < (row + 1) * per_token; ++j) {
    const int64_t slot = call.slots.as<int32_t>()[j];
    if (slot >= 0) {
      const float weight = call.weights.empty() ? 1.0F : call.weights.as<float>()[j];
      add_row(call.x.as<X>() + slot * width + begin, weight, sum, count);
    }
  }
  for (int64_t c = 0; c < count; ++c) {
    store_from_float(y + c, sum[c]);
  }
}

}  // namespace

void assign_slots(Stream /*stream*/, const SlotAssignment& call) {
  const int32_t* const chosen = call.chosen.as<int32_t>();
  const int64_t choices = call.chosen.count();
#pragma omp parallel for schedule(static) if (choices * call.experts >= 16 * kParallelElements)
  for (int64_t expert = 0; expert < call.experts; ++expert) {
    const int32_t* const begins = call.begins.as<int32_t>();
    const int64_t first = begins == nullptr ? expert * call.capacity : begins[expert];
    const int64_t capacity = begins == nullptr ? call.capacity : begins[expert + 1] - first;
    int32_t* const sources = call.sources.as<int32_t>() + first;
    int64_t used = 0;
    for (int64_t i = 0; i < choices; ++i) {
      if (chosen[i] != expert) {
        continue;
      }
      const bool fits = used < capacity;
      call.slots.as<int32_t>()[i] = fits ? static_cast<int32_t>(first + used) : -1;
      if (fits) {
        sources[used++] = static_cast<int32_t>(i);
      }
    }
    while (used < capacity) {
      sources[used++] = -1;
    }
  }
}

void send_rows(Stream /*stream*/, ConstView x, ConstView sources, ConstView weights, bool weighted,
               View y) {
  const int64_t width = x.shape.back();
  const int64_t slots = y.shape.rows();
  const int64_t per_token = weights.shape.back();
  with_float_type(x.dtype, [&]<typename X>(TypeTag<X>) {
#pragma omp parallel for schedule(static) if (slots * width >= kParallelElements)
    for (int64_t slot = 0; slot < slots; ++slot) {
      const int64_t source = sources.as<int32_t>()[slot];
      X* const to = y.as<X>() + slot * width;
      if (source < 0) {
        __builtin_memset(static_cast<void*>(to), 0, static_cast<size_t>(width) * sizeof(X));
      } else {
        write_row(x.as<X>() + source / per_token * width,
                  weighted ? weights.as<float>()[source] : 1.0F, to, width);
      }
    }
  });
}

void return_rows(Stream /*stream*/, const ReturnedRows& call) {
  const int64_t width = call.y.shape.back();
  const int64_t rows = call.y.shape.rows();
  with_float_type(call.y.dtype, [&](auto tag) {
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t begin = 0; begin < width; begin += kChunk) {
        return_row<typename decltype(tag)::Type>(call, row, begin, minimum(kChunk, width - begin));
      }
    }
  });
}

void dot_rows(Stream /*stream*/, ConstView a, ConstView b, ConstView slots, View products) {
  const int64_t width = a.shape.back();
  const int64_t per_token = slots.shape.back();
  const int64_t choices = slots.count();
  with_float_type(a.dtype, [&]<typename X>(TypeTag<X>) {
#pragma omp parallel for schedule(static) if (choices * width >= kParallelElements)
    for (int64_t i = 0; i < choices; ++i) {
      const int64_t slot = slots.as<int32_t>()[i];
      const X* const of_row = a.as<X>() + i / per_token * width;
      const X* const of_slot = b.as<X>() + slot * width;
      products.as<float>()[i] =
          slot < 0 ? 0.0F : lane_sum(width, [&](auto at) { return at(of_row) * at(of_slot); });
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
