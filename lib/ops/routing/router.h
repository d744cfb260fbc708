#pragma once
// The router of a mixture of experts: which experts process a token, and with which weights. All
// arithmetic is fp32 in a fixed order, one row of logits at a time (router_math.h): the same bits
// on each device.

#include <cstdint>

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// How experts are chosen for a token.
struct RouterRule {
  int64_t experts = 0, per_token = 0;  ///< E and k
  int64_t groups = 1, groups_per_token = 1;
  bool sigmoid = false;     ///< scores are sigmoids of logits, and not their soft-max
  bool normalizes = false;  ///< chosen scores are divided by their sum
  float scale = 1.0F;       ///< of the probabilities
};

/// The arguments of route().
struct Route {
  RouterRule rule;
  ConstView logits;    ///< fp32 [rows, E]
  ConstView bias;      ///< fp32 [E], is added to the scores in the choice alone; may be empty
  View keys;           ///< fp32 [rows, E], scratch
  View chosen;         ///< int32 [rows, k]: experts, best first
  View probabilities;  ///< fp32 [rows, k]
};

/// Chooses the k experts of highest score plus bias, of equal ones that of the smallest index; NaN
/// comes last. With groups, those of the `groups_per_token` groups whose two best have the highest
/// sum.
void route(Stream stream, const Route& call);

/// counts[s, e] = choices of expert e in sequence s. chosen: int32 [rows, k]; counts: fp32
/// [sequences, E], of equal numbers of rows, and exact below 2^24.
void count_choices(Stream stream, ConstView chosen, View counts);

/// loads[e] += the choices of expert e; loads[E] += those beyond `capacity`. counts: fp32
/// [sequences, E]; loads: int64 [E + 1].
void add_loads(Stream stream, ConstView counts, int64_t capacity, View loads);

/// The arguments of route_backward().
struct RouteBackward {
  RouterRule rule;
  ConstView logits;     ///< as in Route
  ConstView chosen;     ///< as route() has written it
  ConstView gradients;  ///< fp32 [rows, k], of the probabilities
  View d_logits;        ///< fp32 [rows, E], is overwritten
  /// fp32 [sequences, E] of count_choices(), for the balance loss; empty: there is none. Per token
  /// it is balance_loss * sum over e of f_e p_e, where f_e is the share of expert e in the choices
  /// of the sequence, times E, and p_e the token's score, divided by the sum of its scores
  /// (DeepSeek-V3, arXiv 2412.19437, section 2.1.2, without the factor 1 / T).
  ConstView counts;
  int64_t ranks = 1;  ///< that share each sequence, and whose counts these are the sums of
  float balance_loss = 0.0F;
  float z_loss = 0.0F;  ///< per token: z_loss * log(sum exp)^2 (ST-MoE, arXiv 2202.08906)
  /// Of both losses: *gradient_scale (null: 1) times gradient_factor, which is 1 / positions of a
  /// step, whatever part of them are targets.
  const float* gradient_scale = nullptr;
  float gradient_factor = 1.0F;
  /// fp32 [2, rows]: the balance loss of each token (0 without counts), and its z loss; empty: they
  /// are not written.
  View losses;
};

void route_backward(Stream stream, const RouteBackward& call);

/// The arguments of update_router_bias().
struct RouterBiasUpdate {
  ConstView loads;  ///< int64 [ranks, layers, E + 1], of add_loads(); the ranks' sums count
  int64_t layer = 0;
  float rate = 0.0F;
  View bias;                      ///< fp32, of some experts of the layer
  int64_t first = 0;              ///< the first of them
  const int32_t* skip = nullptr;  ///< device memory; not null and not 0: nothing changes
};

/// bias += rate * sign(mean load - load of the expert) (Wang et al., arXiv 2408.15664).
void update_router_bias(Stream stream, const RouterBiasUpdate& call);

}  // namespace fp8train::ops
