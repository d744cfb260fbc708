#pragma once
// Floating-point operations of attention, as the meta device counts them.

#include "ops/attention/attention.h"

namespace fp8train::ops::meta {

/// Floating-point operations of the causal forward pass: Q K^T and P V, 2 D each for every (query,
/// key) pair that is not masked. Pairs: Tq (Tk - Tq) of past keys and half of the square Tq^2.
double attention_forward_flops(const AttentionShape& shape);

/// 2.5 times the forward pass: five products (scores again, dP, dV, dQ, dK) instead of two.
double attention_backward_flops(const AttentionShape& shape);

}  // namespace fp8train::ops::meta
