#include "ops/gemm/pad_codes.h"

#include <cstdint>

#include "base/error.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPack = 16;  // bytes

/// Writes rows of `to_width` bytes: those of `from`, then zeros. The last byte of a row of `from`
/// counts as far as `last_mask` has bits.
struct PadCodes {
  const uint8_t* from;
  uint8_t* to;
  int64_t width, to_width;
  uint8_t last_mask;

  __device__ uint8_t at(int64_t row, int64_t column) const {
    if (column >= width) {
      return 0;
    }
    const uint8_t byte = from[row * width + column];
    return column == width - 1 ? byte & last_mask : byte;
  }

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t row = i / to_width;
    const int64_t column = i - row * to_width;
    Pack<uint8_t, N> bytes;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      bytes.values[j] = at(row, column + j);
    }
    store_pack(to + i, bytes);
  }
};

}  // namespace

void pad_codes(Stream stream, const ConstView& from, const View& to) {
  check(from.dtype == to.dtype && is_code_type(from.dtype) && from.shape.rank() == 2 &&
            to.shape.rank() == 2 && from.shape[0] == to.shape[0] && from.shape[1] <= to.shape[1],
        "pad_codes: codes, and longer rows of them, expected");
  const auto width = [](const ConstView& view) {
    return static_cast<int64_t>(bytes_of_rows(view.dtype, 1, view.shape[1]));
  };
  const int64_t unused = width(from) * 8 - from.shape[1] * facts_of(from.dtype).bits;
  map<kPack>(stream, static_cast<int64_t>(to.bytes()),
             is_aligned(to.data, kPack) && width(to) % kPack == 0,
             PadCodes{.from = from.as<uint8_t>(),
                      .to = to.as<uint8_t>(),
                      .width = width(from),
                      .to_width = width(to),
                      .last_mask = static_cast<uint8_t>(0xFF >> unused)});
}

}  // namespace fp8train::ops::cuda
