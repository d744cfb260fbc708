#include "comm/topology.h"

#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

/// 0 unless rank = node * ranks_per_node + local rank.
int regular_ranks_per_node(const std::vector<std::vector<int>>& ranks_of_node) {
  const size_t each = ranks_of_node.front().size();
  int expected = 0;
  for (const std::vector<int>& ranks : ranks_of_node) {
    if (ranks.size() != each) {
      return 0;
    }
    for (const int rank : ranks) {
      if (rank != expected++) {
        return 0;
      }
    }
  }
  return static_cast<int>(each);
}

}  // namespace

Topology::Topology(std::vector<int> node_of_rank) : node_of_(std::move(node_of_rank)) {
  check(!node_of_.empty(), "a topology has at least one rank");
  for (size_t rank = 0; rank < node_of_.size(); ++rank) {
    const int node = node_of_[rank];
    check(node >= 0 && node <= nodes(), "nodes are numbered as their first ranks come");
    if (node == nodes()) {
      ranks_of_node_.emplace_back();
    }
    std::vector<int>& ranks = ranks_of_node_[static_cast<size_t>(node)];
    local_rank_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  ranks_per_node_ = regular_ranks_per_node(ranks_of_node_);
}

Topology Topology::of_node_names(const std::vector<int>& names) {
  std::unordered_map<int, int> node_of_name;
  std::vector<int> node_of;
  for (const int name : names) {
    const int next = static_cast<int>(node_of_name.size());
    node_of.push_back(node_of_name.emplace(name, next).first->second);
  }
  return Topology(std::move(node_of));
}

Topology Topology::blocks(int size, int ranks_per_node) {
  check(size > 0 && ranks_per_node > 0, "a topology has ranks on nodes");
  std::vector<int> node_of(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    node_of[static_cast<size_t>(rank)] = rank / ranks_per_node;
  }
  return Topology(std::move(node_of));
}

}  // namespace fp8train
