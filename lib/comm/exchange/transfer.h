#pragma once
// A collective as messages between pairs of ranks, for communicators without collectives of their
// own. Pure data: sender, receiver and bytes of each message, in phases. A phase starts when the
// rank's messages of the previous one have ended.

#include <cstddef>
#include <vector>

#include "comm/topology.h"

namespace fp8train {

struct Message {
  int peer = 0;
  bool sends = false;
  void* data = nullptr;  ///< read where `sends`
  size_t bytes = 0;
};

struct Transfer {
  std::vector<std::vector<Message>> phases;
};

/// The rank's own part is not among the messages: the caller copies it.
Transfer all_to_all_transfer(int size, int rank, const void* send, void* recv, size_t bytes);

/// The rank's own part must be in `recv` before it starts.
Transfer all_gather_transfer(const Topology& topology, int rank, void* recv, size_t bytes);

Transfer broadcast_transfer(const Topology& topology, int rank, void* data, size_t bytes, int root);

}  // namespace fp8train
