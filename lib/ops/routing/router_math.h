#pragma once
// One row of a router, for host and device.

#include <cstdint>

#include "numeric/math.h"
#include "ops/routing/router.h"

namespace fp8train::ops {

FP8TRAIN_HD float minus_infinity() {
  return -float_of(0x7F800000U);
}

/// An expert or a group that can be chosen.
struct Candidate {
  float key;
  int64_t index;
};
FP8TRAIN_HD bool is_better(const Candidate& a, const Candidate& b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}
FP8TRAIN_HD Candidate before_all() {
  return {float_of(0x7F800000U), -1};
}

/// Returns the best of `count` candidates that comes after `last`. No key is NaN.
template <typename Key>
FP8TRAIN_HD Candidate next_best(const Candidate& last, int64_t count, const Key& key) {
  Candidate best = {minus_infinity(), count};
  for (int64_t i = 0; i < count; ++i) {
    const Candidate candidate = {key(i), i};
    if (is_better(last, candidate) && is_better(candidate, best)) {
      best = candidate;
    }
  }
  return best;
}

/// The scores of a row.
struct RouterScores {
  const float* logits;
  bool sigmoid;
  float largest, sum;  ///< of the soft-max

  FP8TRAIN_HD float soft_max(int64_t i) const { return exp_f32(logits[i] - largest) / sum; }
  FP8TRAIN_HD float operator()(int64_t i) const {
    return sigmoid ? sigmoid_f32(logits[i]) : soft_max(i);
  }
  FP8TRAIN_HD float log_sum_exp() const { return largest + log_f32(sum); }
};

FP8TRAIN_HD RouterScores scores_of(const RouterRule& rule, const float* logits) {
  RouterScores scores = {logits, rule.sigmoid, logits[0], 0.0F};
  for (int64_t i = 1; i < rule.experts; ++i) {
    scores.largest = logits[i] > scores.largest ? logits[i] : scores.largest;
  }
  for (int64_t i = 0; i < rule.experts; ++i) {
    scores.sum += exp_f32(logits[i] - scores.largest);
  }
  return scores;
}

/// Returns what the chosen scores are divided by. Sigmoids may all be 0; the addend is that of
/// huggingface/transformers (models/deepseek_v3/modeling_deepseek_v3.py).
FP8TRAIN_HD float divisor_of(const RouterRule& rule, const RouterScores& scores,
                             const int32_t* chosen) {
  if (!rule.normalizes) {
    return 1.0F;
  }
  float sum = 0.0F;
  for (int64_t j = 0; j < rule.per_token; ++j) {
    sum += scores(chosen[j]);
  }
  return rule.sigmoid ? sum + 1e-20F : sum;
}

/// Removes the experts of groups that are not chosen.
FP8TRAIN_HD void choose_groups(const RouterRule& rule, float* keys) {
  const int64_t size = rule.experts / rule.groups;
  const auto key_of_group = [&](int64_t group) {
    const float* const of_group = keys + group * size;
    const auto key = [&](int64_t i) { return of_group[i]; };
    const Candidate best = next_best(before_all(), size, key);
    return best.key + next_best(best, size, key).key;
  };
  Candidate last = before_all();
  for (int64_t i = 0; i < rule.groups_per_token; ++i) {
    last = next_best(last, rule.groups, key_of_group);
  }
  for (int64_t group = 0; group < rule.groups; ++group) {
    if (is_better(last, {key_of_group(group), group})) {
      for (int64_t i = 0; i < size; ++i) {
        keys[group * size + i] = minus_infinity();
      }
    }
  }
}

FP8TRAIN_HD void route_row(const RouterRule& rule, const float* logits, const float* bias,
                           float* keys, int32_t* chosen, float* probabilities) {
  const RouterScores scores = scores_of(rule, logits);
  for (int64_t i = 0; i < rule.experts; ++i) {
    const float key = bias == nullptr ? scores(i) : scores(i) + bias[i];
    keys[i] = key == key ? key : minus_infinity();
  }
  if (rule.groups > 1) {
    choose_groups(rule, keys);
  }
  Candidate last = before_all();
  for (int64_t j = 0; j < rule.per_token; ++j) {
    last = next_best(last, rule.experts, [&](int64_t i) { return keys[i]; });
    chosen[j] = static_cast<int32_t>(last.index);
  }
  const float divisor = divisor_of(rule, scores, chosen);
  for (int64_t j = 0; j < rule.per_token; ++j) {
    probabilities[j] = scores(chosen[j]) / divisor * rule.scale;
  }
}

/// The losses of a row that do not follow from the outputs of experts.
struct RouterLosses {
  const float* counts;     ///< of the row's sequence; null: no balance loss
  float balance, z_slope;  ///< factors of counts, and of the soft-max times log(sum exp)
};

/// Writes the gradients of the balance loss with respect to the scores.
FP8TRAIN_HD void balance_gradients(const RouterRule& rule, const RouterScores& scores,
                                   const RouterLosses& losses, float* d_scores) {
  float sum = 0.0F;
  float weighted = 0.0F;
  for (int64_t i = 0; i < rule.experts; ++i) {
    const float score = scores(i);
    sum += score;
    d_scores[i] = losses.balance * losses.counts[i];
    weighted += d_scores[i] * score;
  }
  if (rule.sigmoid) {
    for (int64_t i = 0; i < rule.experts; ++i) {
      d_scores[i] = (d_scores[i] - weighted / sum) / sum;
    }
  }
}

/// gradients: [k], of the probabilities.
FP8TRAIN_HD void route_backward_row(const RouterRule& rule, const float* logits,
                                    const int32_t* chosen, const float* gradients,
                                    const RouterLosses& losses, float* d_logits) {
  const RouterScores scores = scores_of(rule, logits);
  if (losses.counts != nullptr) {
    balance_gradients(rule, scores, losses, d_logits);
  } else {
    for (int64_t i = 0; i < rule.experts; ++i) {
      d_logits[i] = 0.0F;
    }
  }
  const float divisor = divisor_of(rule, scores, chosen);
  float weighted = 0.0F;
  for (int64_t j = 0; rule.normalizes && j < rule.per_token; ++j) {
    weighted += gradients[j] * (scores(chosen[j]) / divisor);
  }
  for (int64_t j = 0; j < rule.per_token; ++j) {
    d_logits[chosen[j]] += (gradients[j] - weighted) * rule.scale / divisor;
  }
  float of_all = 0.0F;
  for (int64_t i = 0; !rule.sigmoid && i < rule.experts; ++i) {
    of_all += d_logits[i] * scores(i);
  }
  const float z_slope = losses.z_slope == 0.0F ? 0.0F : losses.z_slope * scores.log_sum_exp();
  for (int64_t i = 0; i < rule.experts; ++i) {
    const float score = scores(i);
    const float slope = rule.sigmoid ? score * (1.0F - score) : score;
    d_logits[i] =
        (d_logits[i] - of_all) * slope + (z_slope == 0.0F ? 0.0F : z_slope * scores.soft_max(i));
  }
}

/// Returns the sum over e of counts_e p_e, where p_e is the token's score divided by the sum of its
/// scores.
FP8TRAIN_HD float balance_of_row(const RouterRule& rule, const RouterScores& scores,
                                 const float* counts) {
  float sum = 0.0F;
  float weighted = 0.0F;
  for (int64_t i = 0; i < rule.experts; ++i) {
    const float score = scores(i);
    sum += score;
    weighted += counts[i] * score;
  }
  return rule.sigmoid ? weighted / sum : weighted;
}

/// The rows of route(), for kernels.
struct RouteRows {
  Route call;

  FP8TRAIN_HD void run(int64_t row) const {
    const int64_t first = row * call.rule.experts;
    const int64_t choice = row * call.rule.per_token;
    route_row(call.rule, static_cast<const float*>(call.logits.data) + first,
              static_cast<const float*>(call.bias.data),
              static_cast<float*>(call.keys.data) + first,
              static_cast<int32_t*>(call.chosen.data) + choice,
              static_cast<float*>(call.probabilities.data) + choice);
  }
};

/// The rows of route_backward(), for kernels.
struct RouteBackwardRows {
  RouteBackward call;
  int64_t rows;
  int64_t length;  ///< of a sequence here

  explicit RouteBackwardRows(const RouteBackward& of)
      : call(of),
        rows(of.logits.shape.rows()),
        length(of.counts.empty() ? 1 : rows / of.counts.shape.rows()) {}

  FP8TRAIN_HD void run(int64_t row) const {
    const RouterRule& rule = call.rule;
    const int64_t first = row * rule.experts;
    const int64_t choice = row * rule.per_token;
    const auto* const logits = static_cast<const float*>(call.logits.data) + first;
    const float scale =
        (call.gradient_scale == nullptr ? 1.0F : *call.gradient_scale) * call.gradient_factor;
    RouterLosses of_row = {nullptr, 0.0F, 2.0F * call.z_loss * scale};
    const auto choices = static_cast<float>(rule.per_token * length * call.ranks);
    if (call.counts.data != nullptr) {
      of_row.counts = static_cast<const float*>(call.counts.data) + row / length * rule.experts;
      of_row.balance = call.balance_loss * scale * static_cast<float>(rule.experts) / choices;
    }
    route_backward_row(rule, logits, static_cast<const int32_t*>(call.chosen.data) + choice,
                       static_cast<const float*>(call.gradients.data) + choice, of_row,
                       static_cast<float*>(call.d_logits.data) + first);
    if (auto* const losses = static_cast<float*>(call.losses.data); losses != nullptr) {
      const RouterScores scores = scores_of(rule, logits);
      const float z = scores.log_sum_exp();
      losses[row] = of_row.counts == nullptr
                        ? 0.0F
                        : call.balance_loss * static_cast<float>(rule.experts) / choices *
                              balance_of_row(rule, scores, of_row.counts);
      losses[rows + row] = call.z_loss * z * z;
    }
  }
};

/// The loads of a layer: [ranks, experts], with other ones between ranks.
struct LayerLoads {
  const int64_t* first;
  int64_t ranks, stride, experts;
};

inline LayerLoads loads_of_layer(const RouterBiasUpdate& call) {
  const Shape& shape = call.loads.shape;
  return {call.loads.as<int64_t>() + call.layer * shape[2], shape[0], shape[1] * shape[2],
          shape[2] - 1};
}

/// Returns the direction in which the bias of an expert moves.
FP8TRAIN_HD float bias_direction(const LayerLoads& loads, int64_t expert) {
  int64_t all = 0;
  int64_t own = 0;
  for (int64_t rank = 0; rank < loads.ranks; ++rank) {
    const int64_t* const of_rank = loads.first + rank * loads.stride;
    own += of_rank[expert];
    for (int64_t i = 0; i < loads.experts; ++i) {
      all += of_rank[i];
    }
  }
  own *= loads.experts;
  return own < all ? 1.0F : (own > all ? -1.0F : 0.0F);
}

}  // namespace fp8train::ops
