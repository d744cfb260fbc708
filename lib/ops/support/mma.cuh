#pragma once
// Instructions that C++ has no word for, each a small function: matrix products of a warp on tensor
// cores, the loads that feed them, copies to shared memory that run during the arithmetic.
// Inline PTX on a GPU (sm_80 and later); for the host shim the same computation written out, by the
// fragment layouts that PTX documents. Only for .cu files.
//
// Layouts, for lane 4 g + t of a warp. A 16 x 16: a[0] holds (g, 2t..2t+1), a[1] (g + 8, 2t..),
// a[2] (g, 2t + 8..), a[3] (g + 8, 2t + 8..). B 16 x 8: b0 holds rows 2t..2t+1 of column g, b1 rows
// 2t + 8... C 16 x 8: c[0..1] is (g, 2t..2t+1), c[2..3] (g + 8, 2t..).

#include <cstdint>
#include <type_traits>

#include "ops/support/fast_math.cuh"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {

#if defined(FP8TRAIN_CUDA_SHIM)
namespace detail {

struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
};

template <typename T>
inline float element_of(uint32_t pair, int index) {
  return decode(T{static_cast<uint16_t>(pair >> (16 * index))});
}

/// Row r of the 8 x 8 matrix whose rows' addresses lanes 8 * matrix .. + 7 have given.
inline const uint16_t* matrix_row(const shim::WarpExchange& rows, int matrix, int r) {
  return reinterpret_cast<const uint16_t*>(rows.of_lane(8 * matrix + r));
}

}  // namespace detail
#else
namespace detail {
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
}  // namespace detail
#endif

/// c += a * b for one 16 x 8 tile and a depth of 16, with fp32 sums. T is bf16 or f16. All lanes of
/// the warp call it.
template <typename T>
__device__ __forceinline__ void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
#if defined(FP8TRAIN_CUDA_SHIM)
  const detail::Fragments mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const shim::WarpExchange fragments(kAllLanes, reinterpret_cast<uint64_t>(&mine));
  const auto of_lane = [&](int lane) -> const detail::Fragments& {
    return *reinterpret_cast<const detail::Fragments*>(fragments.of_lane(lane));
  };
  const int group = lane_index() / 4;
  const int quad = lane_index() % 4;
  for (int i = 0; i < 4; ++i) {
    float sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const uint32_t a_pair = of_lane(group * 4 + k % 8 / 2).a[k / 8 * 2 + i / 2];
      const uint32_t b_pair = of_lane((quad * 2 + i % 2) * 4 + k % 8 / 2).b[k / 8];
      sum += detail::element_of<T>(a_pair, k % 2) * detail::element_of<T>(b_pair, k % 2);
    }
    c[i] = sum;
  }
  __syncwarp();  // until all have read
#else
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

/// Four 8 x 8 matrices of 2-byte elements from shared memory: lane 8 i + r gives the address of row
/// r of matrix i (16-byte aligned) and gets (g, 2t..2t+1) of each matrix. All lanes call it.
__device__ __forceinline__ void load_matrices(uint32_t (&matrices)[4], const void* row) {
#if defined(FP8TRAIN_CUDA_SHIM)
  const shim::WarpExchange rows(kAllLanes, reinterpret_cast<uint64_t>(row));
  for (int i = 0; i < 4; ++i) {
    const uint16_t* values = detail::matrix_row(rows, i, lane_index() / 4) + lane_index() % 4 * 2;
    matrices[i] = values[0] | static_cast<uint32_t>(values[1]) << 16;
  }
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(detail::shared_address(row))
               : "memory");
#endif
}

/// Loads the same matrices transposed: each lane gets (2t..2t+1, g).
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&matrices)[4], const void* row) {
#if defined(FP8TRAIN_CUDA_SHIM)
  const shim::WarpExchange rows(kAllLanes, reinterpret_cast<uint64_t>(row));
  const int column = lane_index() / 4;
  for (int i = 0; i < 4; ++i) {
    const uint16_t low = detail::matrix_row(rows, i, lane_index() % 4 * 2)[column];
    const uint16_t high = detail::matrix_row(rows, i, lane_index() % 4 * 2 + 1)[column];
    matrices[i] = low | static_cast<uint32_t>(high) << 16;
  }
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(detail::shared_address(row))
               : "memory");
#endif
}

/// Starts a copy of 16 bytes into shared memory (both addresses 16-byte aligned), of zeros where
/// not `valid`: then `from` is not read. Done when the thread returns from wait_for_copies.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool valid) {
#if defined(FP8TRAIN_CUDA_SHIM)
  shim::copy_later(to, valid ? from : nullptr, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(detail::shared_address(to)), "l"(__cvta_generic_to_global(from)),
                 "r"(valid ? 16 : 0)
               : "memory");
#endif
}

/// The thread's own copies are done; a barrier must follow before other threads read them.
__device__ __forceinline__ void wait_for_copies() {
#if defined(FP8TRAIN_CUDA_SHIM)
  shim::finish_copies();
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace fp8train::ops::cuda
