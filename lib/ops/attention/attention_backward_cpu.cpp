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

/// The factors of products. Without codes the queries carry the scale of the scores.
struct Factors {
  float queries, scores = 1.0F, probability_gradients = 1.0F, score_gradients = 1.0F, delta = 1.0F;
  float dq, dk = kLn2, dv = 1.0F;  ///< the queries carried log2 e

  explicit Factors(const AttentionBackward& call)
      : queries(call.shape.scale * kLog2E), dq(call.shape.scale) {
    const AttentionCodes& codes = call.codes;
    if (!codes.is_on()) {
      return;
    }
    const float qkv = *codes.qkv_inv;
    queries = 1.0F;
    scores = qkv * qkv * (call.shape.scale * kLog2E);
    probability_gradients = *codes.dout_inv * qkv;
    score_gradients = call.shape.scale;
    delta = *codes.dout_inv * (codes.out_inv == nullptr ? 1.0F : *codes.out_inv);
    dq = dk = *codes.dscores.scale_inv * qkv;
    dv = *codes.probabilities.scale_inv * *codes.dout_inv;
  }
};

/// The work of a task: all query heads of a key-value head.
struct HeadWork {
  const AttentionBackward& call;
  const Factors& factors;
  int64_t sequence, kv_head;
  KeyGradients gradients;
  int64_t size;  ///< of each of them
  TaskCounts& counts;
};

/// Loads queries [first, first + rows) of one head, and what belongs to them.
FP8TRAIN_HD void load_queries(const HeadWork& work, int64_t head, int64_t first, int64_t rows,
                              BackwardBlock& block) {
  const auto& [call, factors, b, kv_head, gradients, size, counts] = work;
  const AttentionShape& shape = call.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t padded_dim = padded_dim_of(shape.head_dim);
  const int64_t lanes = round_up(rows, kGroup);
  float* const outputs = block.query_gradients;  // until it is cleared

  load_tile({call.q, b, first, head, head_dim}, rows, factors.queries, block.query_rows, lanes);
  transpose(block.query_rows, padded_dim, lanes, padded_dim, block.queries, kQueries);
  load_tile({call.dout, b, first, head, head_dim}, rows, 1.0F, block.gradient_rows, lanes);
  transpose(block.gradient_rows, padded_dim, lanes, padded_dim, block.gradients, kQueries);
  load_tile({call.out, b, first, head, head_dim}, rows, 1.0F, outputs, lanes);

  const float* stored =
      call.log_sum_exp.as<float>() + (b * shape.heads + head) * shape.query_length + first;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const bool used = lane < rows;
    block.log_sum_exp[lane] = used ? stored[lane] * kLog2E : 0.0F;
    const float* out_row = outputs + lane * padded_dim;
    const float* gradient_row = block.gradient_rows + lane * padded_dim;
    block.delta[lane] =
        used ? lane_sum(head_dim, [=](auto at) { return at(out_row) * at(gradient_row); }) *
                   factors.delta
             : 0.0F;
  }
  for (int64_t i = 0; i < padded_dim * kQueries; ++i) {
    block.query_gradients[i] = 0.0F;
  }
}

/// probabilities = 2^(scores - log_sum_exp), 0 where masked; score_gradients = probabilities *
/// (their gradient - delta).
FP8TRAIN_HD void soft_max_backward(const Factors& factors, const CausalTile& tile,
                                   const BlockDocuments& documents, int64_t key,
                                   BackwardBlock& block) {
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
    for (int64_t lane = first_lane; lane < tile.lanes; lane += kWidth) {
      const Vector log_sum_exp = load_vector(block.log_sum_exp + lane);
      const Vector delta = load_vector(block.delta + lane);
      for (int64_t r = row; r < row + rows; ++r) {
        float* probability = block.probabilities + r * kQueries + lane;
        float* gradient = block.score_gradients + r * kQueries + lane;
        const Vector value =
            exp2_vector(load_vector(probability) * broadcast(factors.scores) - log_sum_exp);
        const Vector difference =
            load_vector(gradient) * broadcast(factors.probability_gradients) - delta;
        store_vector(probability, value);
        store_vector(gradient, value * difference * broadcast(factors.score_gradients));
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
FP8TRAIN_HD void add_tile_gradients(const HeadWork& work, const CausalTile& tile,
                                    const BlockDocuments& documents, int64_t key,
                                    BackwardBlock& block) {
  const auto& [call, factors, b, kv_head, gradients, size, counts] = work;
  const int64_t head_dim = call.shape.head_dim;
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
  soft_max_backward(factors, tile, documents, key, block);
  if (call.codes.is_on()) {
    CastCounts of_probabilities;  // their amax is forward's
    round_tile(tile, call.codes.probabilities, block.probabilities, of_probabilities);
    round_tile(tile, call.codes.dscores, block.score_gradients, counts.in_kernel);
  }
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

/// One block of queries, from `first` on, against all the keys that it sees.
FP8TRAIN_HD void backward_block(const HeadWork& work, int64_t head, int64_t first) {
  const auto& [call, factors, b, kv_head, gradients, size, counts] = work;
  const AttentionShape& shape = call.shape;
  const int64_t rows = minimum(kQueries, shape.query_length - first);
  const int64_t head_dim = shape.head_dim;
  const int64_t padded_dim = padded_dim_of(shape.head_dim);
  const int64_t lanes = round_up(rows, kGroup);

  BackwardBlock block;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled tile by tile
  load_queries(work, head, first, rows, block);
  const BlockDocuments documents(starts_at(call.document_starts, shape, b, first), rows);
  const int64_t position = shape.key_length - shape.query_length + first;
  for (int64_t key = documents.first_key(); key < position + rows; key += kKeys) {
    const int64_t keys = minimum(kKeys, position + rows - key);
    const int64_t padded_keys = round_up(keys, kTileRows);
    load_tile({call.k, b, key, kv_head, head_dim}, keys, 1.0F, block.keys, padded_keys);
    load_tile({call.v, b, key, kv_head, head_dim}, keys, 1.0F, block.values, padded_keys);
    add_tile_gradients(work, {key - position, keys, lanes}, documents, key, block);
  }

  transpose(block.query_gradients, kQueries, padded_dim, lanes, block.query_rows, padded_dim);
  for (int64_t i = 0; i < rows * padded_dim; ++i) {
    block.query_rows[i] *= factors.dq;
  }
  store_tile(block.query_rows, rows, {call.dq, b, first, head, head_dim}, call.codes.cast,
             head * head_dim, counts.cast);
}

FP8TRAIN_HD void backward_head(const HeadWork& work) {
  const auto& [call, factors, b, kv_head, gradients, size, counts] = work;
  const AttentionShape& shape = call.shape;
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t i = 0; i < size; ++i) {
    gradients.keys[i] = gradients.values[i] = 0.0F;
  }
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t first = 0; first < shape.query_length; first += kQueries) {
      backward_block(work, head, first);
    }
  }
  for (int64_t i = 0; i < size; ++i) {
    gradients.keys[i] *= factors.dk;
    gradients.values[i] *= factors.dv;
  }
  const int64_t column = (shape.heads + kv_head) * shape.head_dim;
  store_tile(gradients.keys, shape.key_length, {call.dk, b, 0, kv_head, shape.head_dim},
             call.codes.cast, column, counts.cast);
  store_tile(gradients.values, shape.key_length, {call.dv, b, 0, kv_head, shape.head_dim},
             call.codes.cast, column + shape.kv_heads * shape.head_dim, counts.cast);
}

}  // namespace

/// All heads of all sequences, those of a key-value head for each task.
void attention_backward(Stream /*stream*/, const AttentionBackward& call) {
  const AttentionShape& shape = call.shape;
  HeadTypes::check(call.q.dtype);
  const Factors factors(call);
  const int64_t size = round_up(shape.key_length, kTileRows) * padded_dim_of(shape.head_dim);
  const int64_t tasks = shape.batch * shape.kv_heads;
  for_each_task(tasks, tasks * shape.query_length * shape.key_length >= kParallelElements,
                call.codes.cast, call.codes.dscores.amax, [&](int64_t task, TaskCounts& counts) {
                  float* const all = call.scratch.as<float>() + task * 2 * size;
                  backward_head({call,
                                 factors,
                                 task / shape.kv_heads,
                                 task % shape.kv_heads,
                                 {all, all + size},
                                 size,
                                 counts});
                });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
