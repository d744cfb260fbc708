#include "comm/exchange/transfer.h"

namespace fp8train {
namespace {

void* at(void* base, int index, size_t bytes) {
  return static_cast<std::byte*>(base) + static_cast<size_t>(index) * bytes;
}

/// Peers from the next rank on, so that not all start with the same one.
int rotated(int rank, int step, int size) {
  return (rank + step) % size;
}

}  // namespace

Transfer all_to_all_transfer(int size, int rank, const void* send, void* recv, size_t bytes) {
  Transfer transfer;
  std::vector<Message>& messages = transfer.phases.emplace_back();
  for (int step = 1; step < size; ++step) {
    const int from = rotated(rank, size - step, size);
    messages.push_back({.peer = from, .data = at(recv, from, bytes), .bytes = bytes});
  }
  for (int step = 1; step < size; ++step) {
    const int to = rotated(rank, step, size);
    void* part = at(const_cast<void*>(send), to, bytes);
    messages.push_back({.peer = to, .sends = true, .data = part, .bytes = bytes});
  }
  return transfer;
}

Transfer all_gather_transfer(const Topology& topology, int rank, void* recv, size_t bytes) {
  const int size = topology.size();
  const int each = topology.ranks_per_node();
  // Without regular nodes all ranks count as peers of one another.
  const int width = each > 0 ? each : 1;
  const int rows = size / width;
  const int row = rank / width;
  const int column = rank % width;
  Transfer transfer;
  std::vector<Message>& across = transfer.phases.emplace_back();
  for (int step = 1; step < rows; ++step) {
    const int peer = rotated(row, step, rows) * width + column;
    across.push_back({.peer = peer, .data = at(recv, peer, bytes), .bytes = bytes});
    across.push_back({.peer = peer, .sends = true, .data = at(recv, rank, bytes), .bytes = bytes});
  }
  std::vector<Message>& within = transfer.phases.emplace_back();
  for (int step = 1; step < width; ++step) {
    const int mate = rotated(column, step, width);
    for (int r = 0; r < rows; ++r) {
      const int theirs = r * width + mate;
      const int ours = r * width + column;
      const int peer = row * width + mate;
      within.push_back({.peer = peer, .data = at(recv, theirs, bytes), .bytes = bytes});
      within.push_back(
          {.peer = peer, .sends = true, .data = at(recv, ours, bytes), .bytes = bytes});
    }
  }
  return transfer;
}

Transfer broadcast_transfer(const Topology& topology, int rank, void* data, size_t bytes,
                            int root) {
  const int node = topology.node_of(rank);
  const int root_node = topology.node_of(root);
  const auto speaker_of = [&](int n) {
    return n == root_node ? root : topology.ranks_of_node(n).front();
  };
  Transfer transfer;
  std::vector<Message>& across = transfer.phases.emplace_back();
  if (rank == root) {
    for (int other = 0; other < topology.nodes(); ++other) {
      if (other != root_node) {
        across.push_back({.peer = speaker_of(other), .sends = true, .data = data, .bytes = bytes});
      }
    }
  } else if (rank == speaker_of(node)) {
    across.push_back({.peer = root, .data = data, .bytes = bytes});
  }
  std::vector<Message>& within = transfer.phases.emplace_back();
  if (rank != speaker_of(node)) {
    within.push_back({.peer = speaker_of(node), .data = data, .bytes = bytes});
    return transfer;
  }
  for (const int mate : topology.ranks_of_node(node)) {
    if (mate != rank) {
      within.push_back({.peer = mate, .sends = true, .data = data, .bytes = bytes});
    }
  }
  return transfer;
}

}  // namespace fp8train
