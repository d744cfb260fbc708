#pragma once
// Sums over ranks that are made by our own operations in rank order and fp32 (or fp64), so that
// they have the same bits whatever moves the bytes, and in a reduce_scatter the same bits as in an
// all_reduce. They wait. Gradients go through comm/gradient_exchange.h instead, which overlaps.

#include <cstddef>

#include "comm/communicator.h"
#include "ops/exchange/wire.h"
#include "tensor/view.h"

namespace fp8train {

/// Elements of the piece that each rank sums of `count`: a multiple of `alignment`.
int64_t reduced_chunk(const Communicator& comm, int64_t count, int64_t alignment = kRangeAlignment);

/// Scratch bytes for both of the following, 16-byte aligned.
size_t reduce_scratch_bytes(const Communicator& comm, DType dtype, int64_t count);

/// Every rank gets the sum of all x; fp32 or bf16, where each contribution is rounded to x's type
/// already, the sum is fp32 and is rounded once.
void all_reduce(Communicator& comm, Stream stream, View x, void* scratch);

/// y = elements rank * reduced_chunk .. of the sum of all x. y: of x's type, reduced_chunk
/// elements, fewer for the last ranks where `x` ends.
void reduce_scatter(Communicator& comm, Stream stream, ConstView x, View y, void* scratch);

/// Few values, each rank's sent to all: fp32 or fp64. max: of magnitudes, NaN being the largest.
/// scratch: size() * values.bytes().
void all_combine(Communicator& comm, Stream stream, View values, ops::Combine how, void* scratch);

/// The same for many values, as many as a multiple of size(): each rank combines a share of them,
/// which all others then get. scratch: values.bytes().
void all_combine_shares(Communicator& comm, Stream stream, View values, ops::Combine how,
                        void* scratch);

}  // namespace fp8train
