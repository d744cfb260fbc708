// Compiled once per CPU level. One task per (sequence, key-value head): it walks the group's
// query heads and their blocks in order, so that the gradients of keys and values are summed in an
// order that no thread count changes.

#include "ops/attention/attention_tiles_cpu.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// A block of queries and one tile of keys, as fp32.
struct BackwardBlock {
  alignas(64) float query_rows[kQueries * kMaxHeadDim];       // [lane][d], times scale * log2 e
  alignas(64) float queries[kMaxHeadDim * kQueries];          // [d][lane]
  alignas(64) float gradient_rows[kQueries * kMaxHeadDim];    // of the output, [lane][d]
  alignas(64) float gradients[kMaxHeadDim * kQueries];        // [d][lane]
  alignas(64) float query_gradients[kMaxHeadDim * kQueries];  // [d][lane], without the scale
  alignas(64) float keys[kKeys * kMaxHeadDim];
  alignas(64) float values[kKeys * kMaxHeadDim];
  alignas(64) float probabilities[kKeys * kQueries];    // [key][lane]
  alignas(64) float score_gradients[kKeys * kQueries];  // [key][lane]
  alignas(64) float log_sum_exp[kQueries];              // times log2 e
  alignas(64) float delta[kQueries];                    // sum over d of output * its gradient
};

/// Gradients of all keys and values of one head: [round_up(length, kTileRows), padded_dim] each.
struct KeyGradients {
  float* keys;
  float* values;
};

/// Loads queries [first, first + rows) of one head, and what belongs to them.
template <typename T>
FP8TRAIN_HD void load_queries(const AttentionBackward& call, int64_t b, int64_t head, int64_t first,
                              int64_t rows, BackwardBlock& block) {
  const AttentionShape& shape = call.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t padded_dim = padded_dim_of(shape.head_dim);
  const int64_t lanes = round_up(rows, kGroup);
  const Rows<const T> output = head_rows<const T>(call.out, b, first, head, head_dim);

  load_tile(head_rows<const T>(call.q, b, first, head, head_dim), rows, head_dim,
            shape.scale * kLog2E, block.query_rows, lanes);
  transpose(block.query_rows, padded_dim, lanes, padded_dim, block.queries, kQueries);
  load_tile(head_rows<const T>(call.dout, b, first, head, head_dim), rows, head_dim, 1.0F,
            block.gradient_rows, lanes);
  transpose(block.gradient_rows, padded_dim, lanes, padded_dim, block.gradients, kQueries);
  for (int64_t i = 0; i < padded_dim * kQueries; ++i) {
    block.query_gradients[i] = 0.0F;
  }

  const float* stored =
      call.log_sum_exp.as<float>() + (b * shape.heads + head) * shape.query_length + first;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const bool used = lane < rows;
    block.log_sum_exp[lane] = used ? stored[lane] * kLog2E : 0.0F;
    const T* out_row = output.at(lane);
    const float* gradient_row = block.gradient_rows + lane * padded_dim;
    block.delta[lane] =
        used ? lane_sum(head_dim, [=](auto at) { return at(out_row) * at(gradient_row); }) : 0.0F;
  }
}

/// probabilities = 2^(scores - log_sum_exp), 0 where masked; score_gradients = probabilities *
/// (their gradient - delta).
FP8TRAIN_HD void soft_max_backward(const CausalTile& tile, const BlockDocuments& documents,
                                   int64_t key, BackwardBlock& block) {
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
    for (int64_t lane = first_lane; lane < tile.lanes; lane += kWidth) {
      const Vector log_sum_exp = load_vector(block.log_sum_exp + lane);
      const Vector delta = load_vector(block.delta + lane);
      for (int64_t r = row; r < row + rows; ++r) {
        float* probability = block.probabilities + r * kQueries + lane;
        float* gradient = block.score_gradients + r * kQueries + lane;
        const Vector value = exp2_vector(load_vector(probability) - log_sum_exp);
        store_vector(probability, value);
        store_vector(gradient, value * (load_vector(gradient) - delta));
      }
    }
    for (int64_t r = row; r < row + rows; ++r) {
      const int64_t end = minimum(tile.lanes, r + tile.shift);
      for (int64_t lane = first_lane; lane < end; ++lane) {
        block.probabilities[r * kQueries + lane] = 0.0F;
        block.score_gradients[r * kQueries + lane] = 0.0F;
      }
    }
  });
  documents.for_hidden(tile, key, [&](int64_t row, int64_t lane) {
    block.probabilities[row * kQueries + lane] = 0.0F;
    block.score_gradients[row * kQueries + lane] = 0.0F;
  });
}

/// Adds what one tile of keys contributes to the gradients of the block's queries and of the tile's
/// keys and values.
FP8TRAIN_HD void add_tile_gradients(const CausalTile& tile, const BlockDocuments& documents,
                                    int64_t key, int64_t head_dim, BackwardBlock& block,
                                    const KeyGradients& gradients) {
  const int64_t padded_dim = padded_dim_of(head_dim);
  float* const key_gradients = gradients.keys + key * padded_dim;
  float* const value_gradients = gradients.values + key * padded_dim;
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t lane) {
    const int64_t padded_rows = round_up(rows, kTileRows);
    const int64_t corner = row * kQueries + lane;
    multiply<false>(padded_rows, tile.lanes - lane, head_dim,
                    {block.keys + row * padded_dim, padded_dim, 1},
                    {block.queries + lane, kQueries}, {block.probabilities + corner, kQueries});
    multiply<false>(padded_rows, tile.lanes - lane, head_dim,
                    {block.values + row * padded_dim, padded_dim, 1},
                    {block.gradients + lane, kQueries}, {block.score_gradients + corner, kQueries});
  });
  soft_max_backward(tile, documents, key, block);
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t lane) {
    const int64_t padded_rows = round_up(rows, kTileRows);
    const int64_t corner = row * kQueries + lane;
    multiply<true>(padded_rows, padded_dim, tile.lanes - lane,
                   {block.probabilities + corner, kQueries, 1},
                   {block.gradient_rows + lane * padded_dim, padded_dim},
                   {value_gradients + row * padded_dim, padded_dim});
    multiply<true>(padded_rows, padded_dim, tile.lanes - lane,
                   {block.score_gradients + corner, kQueries, 1},
                   {block.query_rows + lane * padded_dim, padded_dim},
                   {key_gradients + row * padded_dim, padded_dim});
    multiply<true>(round_up(head_dim, kTileRows), tile.lanes - lane, rows,
                   {block.keys + row * padded_dim, 1, padded_dim},
                   {block.score_gradients + corner, kQueries},
                   {block.query_gradients + lane, kQueries});
  });
}

/// One block of queries against all the keys that it sees.
template <typename T>
FP8TRAIN_HD void backward_block(const AttentionBackward& call, int64_t b, int64_t head,
                                int64_t first, int64_t rows, const KeyGradients& gradients) {
  const AttentionShape& shape = call.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t padded_dim = padded_dim_of(shape.head_dim);
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const int64_t lanes = round_up(rows, kGroup);

  BackwardBlock block;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled tile by tile
  load_queries<T>(call, b, head, first, rows, block);
  const BlockDocuments documents(starts_at(call.document_starts, shape, b, first), rows);
  const int64_t position = shape.key_length - shape.query_length + first;
  for (int64_t key = documents.first_key(); key < position + rows; key += kKeys) {
    const int64_t keys = minimum(kKeys, position + rows - key);
    const int64_t padded_keys = round_up(keys, kTileRows);
    load_tile(head_rows<const T>(call.k, b, key, kv_head, head_dim), keys, head_dim, 1.0F,
              block.keys, padded_keys);
    load_tile(head_rows<const T>(call.v, b, key, kv_head, head_dim), keys, head_dim, 1.0F,
              block.values, padded_keys);
    add_tile_gradients({key - position, keys, lanes}, documents, key, head_dim, block, gradients);
  }

  transpose(block.query_gradients, kQueries, padded_dim, lanes, block.query_rows, padded_dim);
  for (int64_t i = 0; i < rows * padded_dim; ++i) {
    block.query_rows[i] *= shape.scale;
  }
  store_tile(block.query_rows, rows, head_dim, head_rows<T>(call.dq, b, first, head, head_dim));
}

/// All heads of all sequences, those of a key-value head for each task.
template <typename T>
void backward_all(const AttentionBackward& call) {
  const AttentionShape& shape = call.shape;
  const int64_t length = shape.query_length;
  const int64_t padded_dim = padded_dim_of(shape.head_dim);
  const int64_t keys = shape.key_length;
  const int64_t gradient_size = round_up(keys, kTileRows) * padded_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t tasks = shape.batch * shape.kv_heads;
#pragma omp parallel for schedule(static) if (tasks * length * keys >= kParallelElements)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t b = task / shape.kv_heads;
    const int64_t kv_head = task % shape.kv_heads;
    float* const all = call.scratch.as<float>() + task * 2 * gradient_size;
    const KeyGradients gradients = {all, all + gradient_size};
    for (int64_t i = 0; i < 2 * gradient_size; ++i) {
      all[i] = 0.0F;
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t first = 0; first < length; first += kQueries) {
        backward_block<T>(call, b, head, first, minimum(kQueries, length - first), gradients);
      }
    }
    for (int64_t i = 0; i < gradient_size; ++i) {
      gradients.keys[i] *= kLn2;  // the queries carried log2 e
    }
    with_float_type(call.dk.dtype, [&](auto tag) {
      using K = typename decltype(tag)::Type;
      store_tile(gradients.keys, keys, shape.head_dim,
                 head_rows<K>(call.dk, b, 0, kv_head, shape.head_dim));
      store_tile(gradients.values, keys, shape.head_dim,
                 head_rows<K>(call.dv, b, 0, kv_head, shape.head_dim));
    });
  }
}

}  // namespace

void attention_backward(Stream /*stream*/, const AttentionBackward& call) {
  with_float_type(call.q.dtype,
                  [&](auto tag) { backward_all<typename decltype(tag)::Type>(call); });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
