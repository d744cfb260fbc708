#pragma once
// Sums over ranks, made by our own operations in rank order and fp32 (or fp64), so that they have
// the same bits with every communicator. These functions return when work that is submitted to the
// stream from then on sees the result. Gradients use comm/exchange/gradient_exchange.h instead,
// which overlaps with other work.

#include "comm/communicator.h"
#include "ops/exchange/wire.h"
#include "tensor/view.h"

namespace fp8train {

/// Returns how many of `count` elements each rank sums: a multiple of `alignment`.
int64_t reduced_chunk(const Communicator& comm, int64_t count, int64_t alignment = kRangeAlignment);

/// Combines few values by sending those of each rank to all: fp32 or fp64. max is that of
/// magnitudes; NaN is the largest. scratch: size() * values.bytes().
void all_combine(Communicator& comm, Stream stream, View values, ops::Combine how, void* scratch);

/// Combines many values, whose number is a multiple of size(): each rank combines a share of them,
/// which all others then get. scratch: values.bytes(). Throws InternalError for another number.
void all_combine_shares(Communicator& comm, Stream stream, View values, ops::Combine how,
                        void* scratch);

}  // namespace fp8train
