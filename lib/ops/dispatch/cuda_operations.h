#pragma once
// The operations of the cuda backend. In a build without it cuda_table_absent.cpp is compiled
// instead.

#include "ops/dispatch/op_table.h"

namespace fp8train::ops::cuda {

/// Throws DeviceError where this build has no CUDA backend.
const OpTable& table();

#define FP8TRAIN_OPERATION(name) decltype(ops::name) name;
#include "ops/dispatch/operations.def"

}  // namespace fp8train::ops::cuda
