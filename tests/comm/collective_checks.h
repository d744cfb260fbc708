#pragma once
// What every communicator must do, whatever moves the bytes.

#include "comm/communicator.h"
#include "device/device.h"

namespace fp8train::test {

/// Called on all ranks. Throws std::runtime_error that says what is wrong.
void check_collectives(Communicator& comm);

/// Sums over ranks: within a rounding of fp64's, the same bits in all_reduce and reduce_scatter.
void check_reductions(Communicator& comm);

/// Every gradient wire, whole buckets and shards, against sums in fp64; gradients lie on `device`.
void check_exchanges(Communicator& comm, Device& device);

}  // namespace fp8train::test
