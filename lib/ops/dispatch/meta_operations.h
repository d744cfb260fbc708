#pragma once
// The operations of the meta device: nothing is computed and no memory is touched; each call adds
// its work to the stream's OpCounters and, where there is one, to the log of the device. `bytes` is
// what the CUDA backend moves: every operand once per pass of a kernel over it. A second read that
// comes from a cache is not counted, nor is scratch that stays there; nor what cuDNN and cuBLASLt
// move for themselves. `launches` are the backend's kernels and fills for aligned operands, without
// statistics.

#include "ops/dispatch/op_table.h"

namespace fp8train::ops::meta {

#define FP8TRAIN_OPERATION(name) decltype(ops::name) name;
#include "ops/dispatch/operations.def"

}  // namespace fp8train::ops::meta
