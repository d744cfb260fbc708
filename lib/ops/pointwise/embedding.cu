// Embedding. Backward sorts the tokens, stably, so that the rows of one token lie side by side;
// then one block per token and stretch of columns adds them in order: no atomics on floats, and the
// bits of the cpu.

#include "ops/dispatch/cuda_operations.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPack = 8;             // elements of one thread
constexpr int64_t kRankTile = 2048;  // tokens that a block of rank_kernel compares its rows with
constexpr int kThreads = 128;  // of a block that adds rows; as many rows are looked up at once
constexpr int kRowsAhead = 8;  // rows that a thread has in flight

/// embedding_forward() for map: an element of y for each index.
template <typename Y>
struct Gather {
  const int32_t* tokens;  ///< null: each row takes its own of the table
  const float* table;
  const float* positions;  ///< from the first position on; may be null
  int64_t sequence_length, vocabulary, columns;
  Y* y;
  const int32_t* document_starts;  ///< may be null
  int64_t first_token, table_rows, first_row;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t row = i / columns;
    const int64_t column = i - row * columns;
    const int64_t token = tokens == nullptr ? first_token + row : tokens[row];
    Pack<Y, N> out;
    if (token < 0 || token >= vocabulary) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        store_from_float(&out.values[j], float_of(0x7FC00000U));
      }
      store_pack(y + i, out);
      return;
    }
    Pack<float, N> values = {};
    const int64_t own = token - first_token;
    if (own >= 0 && own < table_rows) {
      values = load_pack<N>(table + own * columns + column);
    }
    if (positions != nullptr) {
      const int64_t whole_row = first_row + row;
      const int64_t begin = document_starts == nullptr ? 0 : document_starts[whole_row];
      const Pack<float, N> position =
          load_pack<N>(positions + (whole_row % sequence_length - begin) * columns + column);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        values.values[j] += position.values[j];
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], values.values[j]);
    }
    store_pack(y + i, out);
  }
};

/// rank[row] += rows that come before it in the stable order, among one tile of tokens. Quadratic
/// in the number of rows, but two instructions a pair: little next to the rows themselves at the
/// tens of thousands of tokens of a micro-batch.
__global__ void rank_kernel(const int32_t* tokens, int32_t* rank, int64_t rows) {
  FP8TRAIN_SHARED_ARRAY(int32_t, tile, kRankTile);
  const int64_t begin = blockIdx.y * kRankTile;
  const int length = static_cast<int>(rows - begin < kRankTile ? rows - begin : kRankTile);
  for (int i = static_cast<int>(threadIdx.x); i < length; i += kBlock) {
    tile[i] = tokens[begin + i];
  }
  __syncthreads();
  const int64_t row = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (row >= rows) {
    return;
  }
  const int32_t mine = tokens[row];
  const int64_t earlier = row - begin;  // tokens of the tile that lie before this row
  const int split = static_cast<int>(earlier < 0 ? 0 : (earlier < length ? earlier : length));
  int32_t before = 0;
#pragma unroll 8
  for (int i = 0; i < split; ++i) {
    before += tile[i] <= mine ? 1 : 0;
  }
#pragma unroll 8
  for (int i = split; i < length; ++i) {
    before += tile[i] < mine ? 1 : 0;
  }
  atomicAdd(rank + row, before);
}

/// order[rank[row]] = row.
__global__ void invert_kernel(const int32_t* rank, int32_t* order, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (row < rows) {
    order[rank[row]] = static_cast<int32_t>(row);
  }
}

/// The arguments of add_tokens_kernel.
template <typename DY>
struct TokenRows {
  const int32_t* tokens;
  const int32_t* order;  ///< rows sorted by token, then by row
  const DY* dy;
  float* table_grad;
  int64_t rows, table_rows, columns, first_token;
};

/// sums[j] += dy[row, j] for the rows in `tile` up to the first -1, in order.
template <int N, typename DY>
__device__ __forceinline__ void add_rows(const DY* dy, int64_t columns, const int32_t* tile,
                                         float* sums) {
  for (int k = 0; k < kThreads && tile[k] >= 0; k += kRowsAhead) {
    int32_t rows[kRowsAhead];
    Pack<DY, N> packs[kRowsAhead];
#pragma unroll
    for (int u = 0; u < kRowsAhead; ++u) {
      rows[u] = tile[k + u];
      if (rows[u] >= 0) {
        packs[u] = load_pack<N>(dy + rows[u] * columns);
      }
    }
#pragma unroll
    for (int u = 0; u < kRowsAhead; ++u) {
      if (rows[u] >= 0) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          sums[j] += load_as_float(&packs[u].values[j]);
        }
      }
    }
  }
}

/// Block (i, ..) finds whether the i-th row in order is the first of its token, and if so adds all
/// of the token's rows.
template <int N, typename DY>
__global__ void __launch_bounds__(kThreads, 4) add_tokens_kernel(TokenRows<DY> call) {
  FP8TRAIN_SHARED_ARRAY(int32_t, tile, kThreads);
  const int64_t first = blockIdx.x;
  const int32_t token = call.tokens[call.order[first]];
  const bool continues = first > 0 && call.tokens[call.order[first - 1]] == token;
  const int64_t own = token - call.first_token;
  if (continues || own < 0 || own >= call.table_rows) {
    return;
  }
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  const bool active = column < call.columns;
  float* const grad = call.table_grad + own * call.columns + column;
  Pack<float, N> sums = {};
  if (active) {
    sums = load_pack<N>(grad);
  }
  bool more = true;
  for (int64_t begin = first; more; begin += kThreads) {
    const int64_t at = begin + threadIdx.x;
    const int32_t row = at < call.rows ? call.order[at] : -1;
    tile[threadIdx.x] = row >= 0 && call.tokens[row] == token ? row : -1;
    __syncthreads();
    if (active) {
      add_rows<N>(call.dy + column, call.columns, tile, sums.values);
    }
    more = tile[kThreads - 1] >= 0;
    __syncthreads();
  }
  if (active) {
    store_pack(grad, sums);
  }
}

/// position_grad[p] += dy[p - first_row], dy[p - first_row + T], ... in order, those that exist.
/// Documents: positions count from the beginning of documents, and every row is looked at.
template <typename DY, bool Documents>
struct AddPositions {
  const DY* dy;
  float* position_grad;
  const int32_t* document_starts;  ///< of the first row on
  int64_t rows, sequence_length, columns;
  int64_t first_row;  ///< below sequence_length

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t position = i / columns;
    const int64_t column = i - position * columns;
    Pack<float, N> sums = load_pack<N>(position_grad + i);
    const auto add = [&](int64_t row) {
      const Pack<DY, N> values = load_pack<N>(dy + row * columns + column);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sums.values[j] += load_as_float(&values.values[j]);
      }
    };
    if constexpr (Documents) {
      for (int64_t row = 0; row < rows; ++row) {
        if ((first_row + row) % sequence_length - document_starts[row] == position) {
          add(row);
        }
      }
    } else {
      const int64_t first = position - first_row;
#pragma unroll 4
      for (int64_t row = first < 0 ? first + sequence_length : first; row < rows;
           row += sequence_length) {
        add(row);
      }
    }
    store_pack(position_grad + i, sums);
  }
};

/// order = the rows sorted by token, those of one token in order. rank, order: [rows].
void sort_tokens(const Stream& stream, const int32_t* tokens, int32_t* rank, int32_t* order,
                 int64_t rows) {
  const auto blocks = static_cast<unsigned>(ceil_div(rows, kBlock));
  check_cuda(cudaMemsetAsync(rank, 0, static_cast<size_t>(rows) * sizeof(int32_t),
                             cuda_context(stream).stream),
             "embedding_backward");
  launch(stream, {{blocks, static_cast<unsigned>(ceil_div(rows, kRankTile))}, kBlock}, rank_kernel,
         tokens, rank, rows);
  launch(stream, {blocks, kBlock}, invert_kernel, rank, order, rows);
}

template <typename DY>
void add_tokens(const Stream& stream, const EmbeddingBackward& call, bool aligned) {
  const int64_t rows = call.tokens.count();
  const int64_t columns = call.dy.shape.back();
  int32_t* order = call.scratch.as<int32_t>() + rows;
  sort_tokens(stream, call.tokens.as<int32_t>(), call.scratch.as<int32_t>(), order, rows);
  const TokenRows<DY> arguments = {.tokens = call.tokens.as<int32_t>(),
                                   .order = order,
                                   .dy = call.dy.as<DY>(),
                                   .table_grad = call.table_grad.as<float>(),
                                   .rows = rows,
                                   .table_rows = call.table_grad.shape.rows(),
                                   .columns = columns,
                                   .first_token = call.first_token};
  const int64_t packs = aligned ? columns / kPack : columns;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(packs, kThreads)));
  launch(stream, {grid, kThreads},
         aligned ? add_tokens_kernel<kPack, DY> : add_tokens_kernel<1, DY>, arguments);
}

template <typename DY>
void add_positions(const Stream& stream, const EmbeddingBackward& call, bool aligned) {
  const int64_t rows = call.dy.shape.rows();
  const int64_t columns = call.dy.shape.back();
  const int64_t length = call.sequence_length;
  const int64_t first = call.first_row % length;
  const int64_t positions = first + rows < length ? first + rows : length;
  const auto* const dy = call.dy.as<DY>();
  auto* const grad = call.position_grad.as<float>();
  if (call.document_starts.empty()) {
    map<kPack>(stream, positions * columns, aligned,
               AddPositions<DY, false>{dy, grad, nullptr, rows, length, columns, first});
  } else {
    const auto* const starts = call.document_starts.as<int32_t>() + call.first_row;
    map<kPack>(stream, call.position_grad.count(), aligned,
               AddPositions<DY, true>{dy, grad, starts, rows, length, columns, first});
  }
}

}  // namespace

void embedding_forward(Stream stream, const EmbeddingForward& call) {
  const int64_t columns = call.table.shape.back();
  const float* position = call.positions.empty()
                              ? nullptr
                              : call.positions.as<float>() + call.position_offset * columns;
  with_float_type(call.y.dtype, [&]<typename Y>(TypeTag<Y>) {
    const bool aligned =
        columns % kPack == 0 && is_aligned(call.table.data, sizeof(float) * kPack) &&
        is_aligned(position, sizeof(float) * kPack) && is_aligned(call.y.data, sizeof(Y) * kPack);
    map<kPack>(
        stream, call.y.count(), aligned,
        Gather<Y>{call.tokens.as<int32_t>(), call.table.as<float>(), position, call.sequence_length,
                  call.vocabulary, columns, call.y.as<Y>(), call.document_starts.as<int32_t>(),
                  call.first_token, call.table.shape.rows(), call.first_row});
  });
}

void embedding_backward(Stream stream, const EmbeddingBackward& call) {
  with_float_type(call.dy.dtype, [&]<typename DY>(TypeTag<DY>) {
    const bool aligned = call.dy.shape.back() % kPack == 0 &&
                         is_aligned(call.dy.data, sizeof(DY) * kPack) &&
                         is_aligned(call.table_grad.data, sizeof(float) * kPack) &&
                         is_aligned(call.position_grad.data, sizeof(float) * kPack);
    if (!call.table_grad.empty()) {
      add_tokens<DY>(stream, call, aligned);
    }
    if (!call.position_grad.empty()) {
      add_positions<DY>(stream, call, aligned);
    }
  });
}

}  // namespace fp8train::ops::cuda
