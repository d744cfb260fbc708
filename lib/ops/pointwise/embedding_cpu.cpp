// Compiled once per CPU level. Forward splits rows over threads; backward splits columns, so
// that each element of a gradient is summed by one thread, over the rows in order: no atomics, no
// sorting, the same bits for any number of threads.

#include "base/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr int64_t kColumnBlock = 64;  // columns of one thread at a time

/// Returns the position of a row within its document, or within its sequence without `starts`.
FP8TRAIN_HD int64_t position_of(int64_t row, int64_t sequence_length, const int32_t* starts) {
  return row % sequence_length - (starts == nullptr ? 0 : starts[row]);
}

/// to += from.
template <typename DY>
FP8TRAIN_HD void add_row(const DY* __restrict from, float* __restrict to, int64_t count) {
  for (int64_t c = 0; c < count; ++c) {
    to[c] += load_as_float(from + c);
  }
}

}  // namespace

void embedding_forward(Stream /*stream*/, const EmbeddingForward& call) {
  const int64_t rows = call.y.shape.rows();
  const int64_t columns = call.table.shape.back();
  const int64_t table_rows = call.table.shape.rows();
  const int32_t* tokens = call.tokens.as<int32_t>();
  const float* table_data = call.table.as<float>();
  const float* position_data = call.positions.as<float>();
  const int32_t* starts = call.document_starts.as<int32_t>();
  with_float_type(call.y.dtype, [&](auto tag) {
    auto* data = call.y.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      auto* to = data + row * columns;
      const int64_t token = tokens == nullptr ? call.first_token + row : tokens[row];
      if (token < 0 || token >= call.vocabulary) {
        for (int64_t c = 0; c < columns; ++c) {
          store_from_float(to + c, float_of(0x7FC00000U));
        }
        continue;
      }
      const int64_t own = token - call.first_token;
      const float* from = own >= 0 && own < table_rows ? table_data + own * columns : nullptr;
      const float* position =
          position_data == nullptr
              ? nullptr
              : position_data + (call.position_offset +
                                 position_of(call.first_row + row, call.sequence_length, starts)) *
                                    columns;
      for (int64_t c = 0; c < columns; ++c) {
        const float value = from == nullptr ? 0.0F : from[c];
        store_from_float(to + c, position == nullptr ? value : value + position[c]);
      }
    }
  });
}

void embedding_backward(Stream /*stream*/, const EmbeddingBackward& call) {
  const int64_t rows = call.dy.shape.rows();
  const int64_t columns = call.dy.shape.back();
  const int64_t table_rows = call.table_grad.empty() ? 0 : call.table_grad.shape.rows();
  const int64_t blocks = ceil_div(columns, kColumnBlock);
  const int32_t* tokens = call.tokens.as<int32_t>();
  float* table_data = call.table_grad.as<float>();
  float* position_data = call.position_grad.as<float>();
  const int32_t* starts = call.document_starts.as<int32_t>();
  with_float_type(call.dy.dtype, [&](auto tag) {
    const auto* data = call.dy.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * kColumnBlock;
      const int64_t width = minimum(kColumnBlock, columns - begin);
      for (int64_t row = 0; row < rows; ++row) {
        const auto* from = data + row * columns + begin;
        const int64_t token = table_rows == 0 ? -1 : tokens[row] - call.first_token;
        if (token >= 0 && token < table_rows) {
          add_row(from, table_data + token * columns + begin, width);
        }
        if (position_data != nullptr) {
          const int64_t position = position_of(call.first_row + row, call.sequence_length, starts);
          add_row(from, position_data + position * columns + begin, width);
        }
      }
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
