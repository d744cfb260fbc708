#pragma once
// What every communicator must do, whatever moves the bytes.

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"

namespace fp8train::test {

/// Called on all ranks. Throws std::runtime_error that says what is wrong.
void check_collectives(Communicator& comm);

/// Sums and maxima over ranks.
void check_reductions(Communicator& comm);

/// Every collective on memory of `device`, against `host`, which has the same ranks.
void check_on_device(Communicator& comm, Device& device, Communicator& host);

/// What every gradient wire makes of the same gradients, whole buckets and shards.
struct Exchanged {
  std::string name;
  std::vector<float> values;
};
std::vector<Exchanged> exchange_all(Communicator& comm, Device& device);

/// Every gradient wire, whole buckets and shards, against sums in fp64; gradients lie on `device`.
void check_exchanges(Communicator& comm, Device& device);

}  // namespace fp8train::test
