// Compiled once per CPU level. Tiled attention with a running soft-max (Milakov and Gimelshein
// 2018; Dao et al. 2022), in powers of two: one task per (sequence, head, block of queries).

#include "base/math.h"
#include "numeric/math.h"
#include "ops/attention/attention_tiles_cpu.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
/// The score of a key of another document. Finite: a tile may hold nothing else for a lane, and
/// what it then adds is multiplied by 0 when the lane's own document begins.
constexpr float kHidden = -3e38F;

/// The running soft-max of a block of queries, and its tiles.
struct ForwardBlock {
  alignas(64) float rows[kQueries * kMaxHeadDim];     // the queries, later the output, as rows
  alignas(64) float queries[kMaxHeadDim * kQueries];  // [d][lane], times the scale of the scores
  alignas(64) float output[kMaxHeadDim * kQueries];   // [d][lane], not yet divided by `sum`
  alignas(64) float keys[kKeys * kMaxHeadDim];
  alignas(64) float values[kKeys * kMaxHeadDim];
  alignas(64) float scores[kKeys * kQueries];  // [key][lane], then the probabilities
  alignas(64) float max[kQueries];
  alignas(64) float sum[kQueries];
};

/// Sets scores of keys that a lane must not see to -infinity, within the groups that are in use.
FP8TRAIN_HD void mask_scores(const CausalTile& tile, float* scores) {
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
    for (int64_t r = row; r < row + rows; ++r) {
      const int64_t end = minimum(tile.lanes, r + tile.shift);
      for (int64_t lane = first_lane; lane < end; ++lane) {
        scores[r * kQueries + lane] = kMinusInfinity;
      }
    }
  });
}

/// Raises the running maximum and multiplies what was summed before by 2^(old - new maximum).
FP8TRAIN_HD void update_maximum(const CausalTile& tile, int64_t head_dim, bool first_tile,
                                ForwardBlock& block) {
  alignas(64) float highest[kQueries];
  for (int64_t lane = 0; lane < tile.lanes; ++lane) {
    highest[lane] = block.max[lane];
  }
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
    for (int64_t lane = first_lane; lane < tile.lanes; lane += kWidth) {
      Vector top = load_vector(highest + lane);
      for (int64_t r = row; r < row + rows; ++r) {
        const Vector score = load_vector(block.scores + r * kQueries + lane);
        top = top > score ? top : score;
      }
      store_vector(highest + lane, top);
    }
  });
  for (int64_t lane = 0; lane < tile.lanes; lane += kWidth) {
    const Vector top = load_vector(highest + lane);
    const Vector factor = exp2_vector(load_vector(block.max + lane) - top);
    store_vector(block.max + lane, top);
    if (first_tile) {
      continue;
    }
    store_vector(block.sum + lane, load_vector(block.sum + lane) * factor);
    for (int64_t d = 0; d < head_dim; ++d) {
      float* output = block.output + d * kQueries + lane;
      store_vector(output, load_vector(output) * factor);
    }
  }
}

/// scores = 2^(scores - max), added to the running sums.
FP8TRAIN_HD void exponentiate(const CausalTile& tile, ForwardBlock& block) {
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
    for (int64_t lane = first_lane; lane < tile.lanes; lane += kWidth) {
      const Vector top = load_vector(block.max + lane);
      Vector sum = load_vector(block.sum + lane);
      for (int64_t r = row; r < row + rows; ++r) {
        float* score = block.scores + r * kQueries + lane;
        const Vector probability = exp2_vector(load_vector(score) - top);
        store_vector(score, probability);
        sum += probability;
      }
      store_vector(block.sum + lane, sum);
    }
  });
}

/// Products of codes get the scale that the queries bring otherwise.
FP8TRAIN_HD void scale_scores(const CausalTile& tile, float factor, float* scores) {
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t first_lane) {
    for (int64_t r = row; r < row + rows; ++r) {
      for (int64_t lane = first_lane; lane < tile.lanes; ++lane) {
        scores[r * kQueries + lane] *= factor;
      }
    }
  });
}

/// Adds the tile of keys in block.keys and block.values to the running soft-max.
FP8TRAIN_HD void add_tile(const AttentionForward& call, const CausalTile& tile,
                          const BlockDocuments& documents, int64_t key, ForwardBlock& block,
                          CastCounts& counts) {
  const int64_t head_dim = call.shape.head_dim;
  const AttentionCodes& codes = call.codes;
  const int64_t padded_dim = padded_dim_of(head_dim);
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t lane) {
    multiply<false>(round_up(rows, kTileRows), tile.lanes - lane, head_dim,
                    {block.keys + row * padded_dim, padded_dim, 1},
                    {block.queries + lane, kQueries},
                    {block.scores + row * kQueries + lane, kQueries});
  });
  if (codes.is_on()) {
    scale_scores(tile, *codes.qkv_inv * *codes.qkv_inv * (call.shape.scale * kLog2E), block.scores);
  }
  if (tile.masks()) {
    mask_scores(tile, block.scores);
  }
  documents.for_hidden(
      tile, key, [&](int64_t row, int64_t lane) { block.scores[row * kQueries + lane] = kHidden; });
  update_maximum(tile, head_dim, key == documents.first_key(), block);
  exponentiate(tile, block);
  if (codes.is_on()) {
    round_tile(tile, codes.probabilities, block.scores, counts);
  }
  for_visible_groups(tile, [&](int64_t row, int64_t rows, int64_t lane) {
    multiply<true>(round_up(head_dim, kTileRows), tile.lanes - lane, rows,
                   {block.values + row * padded_dim, 1, padded_dim},
                   {block.scores + row * kQueries + lane, kQueries},
                   {block.output + lane, kQueries});
  });
}

/// Attention of queries [first, first + rows) of one head.
FP8TRAIN_HD void attend(const AttentionForward& call, int64_t b, int64_t head, int64_t first,
                        TaskCounts& counts) {
  const AttentionShape& shape = call.shape;
  const AttentionCodes& codes = call.codes;
  const int64_t rows = minimum(kQueries, shape.query_length - first);
  const int64_t head_dim = shape.head_dim;
  const int64_t padded_dim = padded_dim_of(head_dim);
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const int64_t lanes = round_up(rows, kGroup);
  const int64_t history = shape.key_length - shape.query_length;

  ForwardBlock block;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled tile by tile
  load_tile({call.q, b, first, head, head_dim}, rows, codes.is_on() ? 1.0F : shape.scale * kLog2E,
            block.rows, lanes);
  transpose(block.rows, padded_dim, lanes, padded_dim, block.queries, kQueries);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    block.max[lane] = kMinusInfinity;
    block.sum[lane] = 0.0F;
  }
  for (int64_t i = 0; i < padded_dim * kQueries; ++i) {
    block.output[i] = 0.0F;
  }

  const int64_t visible = history + first + rows;
  const BlockDocuments documents(starts_at(call.document_starts, shape, b, first), rows);
  for (int64_t key = documents.first_key(); key < visible; key += kKeys) {
    const int64_t keys = minimum(kKeys, visible - key);
    const int64_t padded_keys = round_up(keys, kTileRows);
    load_tile({call.k, b, key, kv_head, head_dim}, keys, 1.0F, block.keys, padded_keys);
    load_tile({call.v, b, key, kv_head, head_dim}, keys, 1.0F, block.values, padded_keys);
    add_tile(call, {key - history - first, keys, lanes}, documents, key, block, counts.in_kernel);
  }

  const float unit = codes.is_on() ? *codes.qkv_inv * *codes.probabilities.scale_inv : 1.0F;
  for (int64_t lane = 0; lane < lanes; lane += kWidth) {
    const Vector factor = broadcast(unit) / load_vector(block.sum + lane);
    for (int64_t d = 0; d < head_dim; ++d) {
      float* output = block.output + d * kQueries + lane;
      store_vector(output, load_vector(output) * factor);
    }
  }
  transpose(block.output, kQueries, padded_dim, lanes, block.rows, padded_dim);
  store_tile(block.rows, rows, {call.out, b, first, head, head_dim}, codes.cast, head * head_dim,
             counts.cast);
  if (!call.log_sum_exp.empty()) {
    float* stored =
        call.log_sum_exp.as<float>() + (b * shape.heads + head) * shape.query_length + first;
    for (int64_t lane = 0; lane < rows; ++lane) {
      stored[lane] = block.max[lane] * kLn2 + log_f32(block.sum[lane]);
    }
  }
}

}  // namespace

/// All heads of all sequences, a block of queries for each task.
void attention_forward(Stream /*stream*/, const AttentionForward& call) {
  const AttentionShape& shape = call.shape;
  HeadTypes::check(call.q.dtype);
  const int64_t blocks = ceil_div(shape.query_length, kQueries);
  const int64_t tasks = shape.batch * shape.heads * blocks;
  const int64_t work = tasks * minimum(shape.query_length, kQueries) * shape.key_length;
  for_each_task(tasks, work >= kParallelElements, call.codes.cast, call.codes.probabilities.amax,
                [&](int64_t task, TaskCounts& counts) {
                  attend(call, task / blocks / shape.heads, task / blocks % shape.heads,
                         task % blocks * kQueries, counts);
                });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
