#pragma once
// A collective as messages between pairs of ranks, for communicators without collectives of their
// own. Pure data: sender, receiver and bytes of each message, in phases. A phase starts when the
// rank's messages of the previous one have ended.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/topology.h"

namespace fp8train {

/// One message to or from another rank.
struct Message {
  int peer = 0;
  bool sends = false;
  void* data = nullptr;  ///< read where `sends`
  size_t bytes = 0;
  uint64_t number = 0;  ///< among those from its sender to its receiver; Communicator::run sets it
};

/// The messages of one rank, phase after phase.
struct Transfer {
  std::vector<std::vector<Message>> phases;
};

/// All ranks send `bytes` to each other. The rank's own part is not among the messages: the caller
/// copies it.
Transfer all_to_all_transfer(int size, int rank, const void* send, void* recv, size_t bytes);

/// All ranks get `bytes` of each. The rank's own part must be in `recv` before it starts.
Transfer all_gather_transfer(const Topology& topology, int rank, void* recv, size_t bytes);

/// All ranks get the root's `bytes` at `data`.
Transfer broadcast_transfer(const Topology& topology, int rank, void* data, size_t bytes, int root);

}  // namespace fp8train
