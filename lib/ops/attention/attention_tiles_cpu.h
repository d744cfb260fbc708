#pragma once
// Building blocks of the attention kernels: fp32 tiles on the stack, a register-blocked product of
// tiles, and moves between tiles and the rows of q, k, v. Queries are the lanes of the vectors:
// scores are held transposed, [key][query], so that the running maximum and sum of the soft-max
// need no reduction across lanes.
//
// The product and the exponential use fused multiply-adds where the level has them, so attention's
// bits differ between x86-64 and all other levels; everything else rounds step by step.

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "base/math.h"
#include "ops/attention/attention.h"
#include "ops/cast/quantize_sink_cpu.h"
#include "ops/support/kernel_support_cpu.h"
#include "ops/support/transpose_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

constexpr int64_t kQueries = 64;  ///< of one block; lanes of a tile
constexpr int64_t kKeys = 64;     ///< of one tile
constexpr int64_t kGroup = 16;    ///< keys and queries that the causal mask skips as a whole
constexpr int64_t kTileRows = 4;  ///< rows of a tile that a register block takes at once

#if defined(__AVX512F__)
constexpr int64_t kWidth = 16;
constexpr int64_t kBlockVectors = 4;
#elif defined(__FMA__)
constexpr int64_t kWidth = 8;
constexpr int64_t kBlockVectors = 2;
#else
constexpr int64_t kWidth = 4;
constexpr int64_t kBlockVectors = 2;
#endif
typedef float Vector __attribute__((vector_size(kWidth * 4)));
typedef uint32_t BitVector __attribute__((vector_size(kWidth * 4)));

FP8TRAIN_HD Vector load_vector(const float* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}
FP8TRAIN_HD void store_vector(float* to, Vector vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}
FP8TRAIN_HD Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

FP8TRAIN_HD Vector broadcast(float value) {
  return value - Vector{};
}

constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;

/// 2^x for x <= 0 (a little above is fine), to 2 ulp; 0 below -126, where a probability no longer
/// matters. NaN stays. A polynomial on [-1/2, 1/2], a minimax fit of 2^x in relative error.
FP8TRAIN_HD Vector exp2_vector(Vector x) {
  const Vector rounder = broadcast(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const Vector least = broadcast(-126.0F);
  const Vector limited = x < least ? least : x;  // NaN passes
  const Vector shifted = limited + rounder;
  const Vector f = limited - (shifted - rounder);
  Vector p = multiply_add(broadcast(1.53458110e-4F), f, broadcast(1.33999309e-3F));
  p = multiply_add(p, f, broadcast(9.61848907e-3F));
  p = multiply_add(p, f, broadcast(5.55032864e-2F));
  p = multiply_add(p, f, broadcast(2.40226462e-1F));
  p = multiply_add(p, f, broadcast(kLn2));
  p = multiply_add(p, f, broadcast(1.0F));
  const BitVector result = (BitVector)p + ((BitVector)shifted << 23);
  return x < least ? Vector{} : (Vector)result;
}

/// A matrix in memory whose element (row, column) is at data[row * row_stride + column *
/// column_stride].
struct Strided {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

/// A matrix whose rows lie `stride` elements apart.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  FP8TRAIN_HD T* at(int64_t row) const { return data + row * stride; }
};

/// c[m][n] (+)= sum over k < depth of a(m, k) * b[k][n] for kTileRows rows and kVectors vectors.
template <bool kAdd, int kVectors>
FP8TRAIN_HD void multiply_block(Strided a, Rows<const float> b, int64_t depth, Rows<float> c) {
  Vector sums[kTileRows][kVectors];
  for (int m = 0; m < kTileRows; ++m) {
    for (int n = 0; n < kVectors; ++n) {
      sums[m][n] = kAdd ? load_vector(c.at(m) + n * kWidth) : Vector{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector row[kVectors];
    for (int n = 0; n < kVectors; ++n) {
      row[n] = load_vector(b.at(k) + n * kWidth);
    }
    for (int m = 0; m < kTileRows; ++m) {
      const Vector factor = broadcast(a.data[m * a.row_stride + k * a.column_stride]);
      for (int n = 0; n < kVectors; ++n) {
        sums[m][n] = multiply_add(factor, row[n], sums[m][n]);
      }
    }
  }
  for (int m = 0; m < kTileRows; ++m) {
    for (int n = 0; n < kVectors; ++n) {
      store_vector(c.at(m) + n * kWidth, sums[m][n]);
    }
  }
}

/// Does what multiply_block() does for `rows` rows, a multiple of kTileRows.
template <bool kAdd, int kVectors>
FP8TRAIN_HD void multiply_rows(int64_t rows, Strided a, Rows<const float> b, int64_t depth,
                               Rows<float> c) {
  for (int64_t m = 0; m < rows; m += kTileRows) {
    multiply_block<kAdd, kVectors>({a.data + m * a.row_stride, a.row_stride, a.column_stride}, b,
                                   depth, {c.at(m), c.stride});
  }
}

/// Does what multiply_rows() does for `columns` columns, a multiple of kGroup.
template <bool kAdd>
static __attribute__((noinline)) void multiply(int64_t rows, int64_t columns, int64_t depth,
                                               Strided a, Rows<const float> b, Rows<float> c) {
  constexpr int64_t kStep = kBlockVectors * kWidth;
  for (; columns >= kStep; columns -= kStep, b.data += kStep, c.data += kStep) {
    multiply_rows<kAdd, kBlockVectors>(rows, a, b, depth, c);
  }
  switch (columns / kWidth) {  // only where a register block is wider than a group
    case 3:
      return multiply_rows<kAdd, 3>(rows, a, b, depth, c);
    case 2:
      return multiply_rows<kAdd, 2>(rows, a, b, depth, c);
    case 1:
      return multiply_rows<kAdd, 1>(rows, a, b, depth, c);
    default:
      return;
  }
}

/// The columns of a tile: the head's, then zeros up to a whole group.
FP8TRAIN_HD int64_t padded_dim_of(int64_t head_dim) {
  return round_up(head_dim, kGroup);
}

/// Which part of a score tile [keys][lanes] the causal mask leaves: key r is seen by lane l from
/// lane r + shift on.
struct CausalTile {
  int64_t shift;  ///< first key - (Tk - Tq) - first query
  int64_t keys;   ///< rows of the tile in use
  int64_t lanes;  ///< queries in use, rounded up to kGroup

  bool masks() const { return shift + keys - 1 > 0; }
  /// First group of lanes that sees any of the keys of the group starting at row `group`.
  int64_t first_lane(int64_t group) const {
    const int64_t first = group + shift;
    return first <= 0 ? 0 : first / kGroup * kGroup;
  }
};

/// body(row, rows, lane): the rows in use by groups of keys and the first lane that sees them; the
/// whole tile at once where nothing is masked.
template <typename Body>
FP8TRAIN_HD void for_visible_groups(const CausalTile& tile, Body body) {
  if (!tile.masks()) {
    body(int64_t{0}, tile.keys, int64_t{0});
    return;
  }
  for (int64_t row = 0; row < tile.keys; row += kGroup) {
    const int64_t lane = tile.first_lane(row);
    if (lane < tile.lanes) {
      body(row, minimum(kGroup, tile.keys - row), lane);
    }
  }
}

/// Where the documents of a block's queries begin, if there are several in a sequence.
struct BlockDocuments {
  int64_t begin[kQueries];  ///< of each lane; those that are not in use repeat the last one
  bool several = false;

  FP8TRAIN_HD BlockDocuments(const int32_t* starts, int64_t rows) : several(starts != nullptr) {
    for (int64_t lane = 0; several && lane < kQueries; ++lane) {
      begin[lane] = starts[lane < rows ? lane : rows - 1];
    }
  }
  /// The first key of the first tile that any of the queries sees.
  FP8TRAIN_HD int64_t first_key() const { return several ? begin[0] / kKeys * kKeys : 0; }
  /// body(row, lane) for what lies before a lane's document in the tile whose first key is `key`.
  template <typename Body>
  FP8TRAIN_HD void for_hidden(const CausalTile& tile, int64_t key, Body body) const {
    if (!several || key >= begin[kQueries - 1]) {
      return;
    }
    for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
      for (int64_t r = row; r < row + rows; ++r) {
        for (int64_t lane = first_lane; lane < tile.lanes; ++lane) {
          if (key + r < begin[lane]) {
            body(r, lane);
          }
        }
      }
    });
  }
};

/// The starts that belong to the queries from `first` on; null where there are none.
FP8TRAIN_HD const int32_t* starts_at(const DocumentStarts& starts, const AttentionShape& shape,
                                     int64_t b, int64_t first) {
  const int64_t history = shape.key_length - shape.query_length;
  return starts.empty()
             ? nullptr
             : starts.as<int32_t>() + b * (starts.count() / shape.batch) + history + first;
}

/// Rows of one head, as a view has them.
struct HeadRows {
  HeadsView view;
  int64_t sequence, position, head, head_dim;

  template <typename T>
  FP8TRAIN_HD T* at(int64_t row) const {
    return static_cast<T*>(view.data) +
           (sequence * view.length_capacity + position + row) * view.row_stride + head * head_dim;
  }
};

/// The types of tiles in memory.
using HeadTypes = decltype(FloatTypes{} + Fp8Types{});

/// tile [padded_rows, padded_dim_of(head_dim)] = the first `rows` rows as fp32, times `factor`;
/// zeros beyond the head and the rows.
static __attribute__((noinline)) void load_tile(const HeadRows& from, int64_t rows, float factor,
                                                float* tile, int64_t padded_rows) {
  const int64_t head_dim = from.head_dim;
  const int64_t padded_dim = padded_dim_of(head_dim);
  HeadTypes::with(from.view.dtype, [&]<typename T>(TypeTag<T>) {
    for (int64_t row = 0; row < rows; ++row) {
      const T* __restrict values = from.at<const T>(row);
      float* __restrict out = tile + row * padded_dim;
      for (int64_t d = 0; d < head_dim; ++d) {
        out[d] = load_as_float(values + d) * factor;
      }
      for (int64_t d = head_dim; d < padded_dim; ++d) {
        out[d] = 0.0F;
      }
    }
  });
  for (int64_t i = rows * padded_dim; i < padded_rows * padded_dim; ++i) {
    tile[i] = 0.0F;
  }
}

/// The first `rows` rows of a tile, into memory and as `cast` says: `first` is the head's column of
/// the codes.
static __attribute__((noinline)) void store_tile(const float* tile, int64_t rows,
                                                 const HeadRows& to, const QuantizeSink& cast,
                                                 int64_t first, CastCounts& counts) {
  const int64_t padded_dim = padded_dim_of(to.head_dim);
  if (to.view.data != nullptr) {
    with_float_type(to.view.dtype, [&]<typename T>(TypeTag<T>) {
      for (int64_t row = 0; row < rows; ++row) {
        const float* __restrict values = tile + row * padded_dim;
        T* __restrict out = to.at<T>(row);
        for (int64_t d = 0; d < to.head_dim; ++d) {
          store_from_float(out + d, values[d]);
        }
      }
    });
  }
  for (int64_t row = 0; row < rows && !cast.empty(); ++row) {
    cast_piece(cast, tile + row * padded_dim,
               to.sequence * to.view.length_capacity + to.position + row, first, to.head_dim,
               counts);
  }
}

/// Rounds the visible part of a tile [keys][lanes] to codes, without their scale.
static __attribute__((noinline)) void round_tile(const CausalTile& tile, const KernelCodes& to,
                                                 float* values, CastCounts& counts) {
  with_fp8_type(to.dtype, [&]<typename Code>(TypeTag<Code>) {
    for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
      const int64_t lanes = tile.lanes - first_lane;
      for (int64_t r = row; r < row + rows; ++r) {
        float* const line = values + r * kQueries + first_lane;
        Code codes[kQueries];
        counts.raise(largest_magnitude(line, lanes));
        encode_chunk(line, *to.scale, codes, lanes);
        for (int64_t lane = 0; lane < lanes; ++lane) {
          line[lane] = decode(codes[lane]);
        }
      }
    });
  });
}

/// The counts of a task that casts.
struct TaskCounts {
  CastCounts cast, in_kernel;
};

/// body(task, counts) for all tasks over the threads, and the scalars of the casts of what `cast`
/// and `in_kernel` say.
template <typename Body>
FP8TRAIN_HD void for_each_task(int64_t tasks, bool in_parallel, const QuantizeSink& cast,
                               float* in_kernel, Body body) {
  uint32_t largest = 0;
  uint32_t largest_in_kernel = 0;
  uint64_t saturated = 0;
  uint64_t underflow = 0;
  // Later blocks see more keys. Maxima and counts do not depend on which thread has which.
#pragma omp parallel for schedule(dynamic, 1) reduction(max : largest, largest_in_kernel) \
    reduction(+ : saturated, underflow) if (in_parallel)
  for (int64_t task = 0; task < tasks; ++task) {
    TaskCounts counts;
    body(task, counts);
    largest = largest > counts.cast.largest ? largest : counts.cast.largest;
    largest_in_kernel =
        largest_in_kernel > counts.in_kernel.largest ? largest_in_kernel : counts.in_kernel.largest;
    saturated += counts.cast.saturated;
    underflow += counts.cast.underflow;
  }
  keep_counts<float>({largest, saturated, underflow}, cast.out.rowwise.codes.count(), cast.amax,
                     cast.statistics);
  keep_counts<float>({largest_in_kernel, 0, 0}, 0, in_kernel, nullptr);
  if (const Encoded& out = cast.out.rowwise; out.tensor_scale != nullptr) {
    *out.tensor_scale = reciprocal(*out.cast_scales);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
