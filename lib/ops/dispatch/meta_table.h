#pragma once
// The operations of the meta device: nothing is computed and no memory is touched; each call adds
// its work to the stream's OpCounters and, where there is one, to the log of the device. `bytes` is
// what the CUDA backend moves: every operand once per pass of a kernel over it. A second read that
// comes from a cache is not counted, nor is scratch that stays there; nor what cuDNN and cuBLASLt
// move for themselves. `launches` are the backend's kernels and fills for aligned operands, without
// statistics.

#include "ops/dispatch/op_table.h"

namespace fp8train::ops::meta {

const OpTable& table();

/// Floating-point operations of the causal forward pass: Q K^T and P V, 2 D each for every (query,
/// key) pair that is not masked. Pairs: Tq (Tk - Tq) of past keys and half of the square Tq^2.
double attention_forward_flops(const AttentionShape& shape);

/// 2.5 times the forward pass: five products (scores again, dP, dV, dQ, dK) instead of two.
double attention_backward_flops(const AttentionShape& shape);

}  // namespace fp8train::ops::meta
