#pragma once
// The node of each rank. Every rank has the whole table. Pure data, which does not change.

#include <cstddef>
#include <vector>

namespace fp8train {

class Topology {
 public:
  /// Makes the topology of one rank.
  Topology() : Topology(std::vector<int>{0}) {}
  /// Takes the node of each rank; nodes are numbered from 0 in the order in which their first ranks
  /// come. Throws InternalError if they are not.
  explicit Topology(std::vector<int> node_of_rank);

  /// `size` ranks, `ranks_per_node` of them on each node but perhaps the last.
  static Topology blocks(int size, int ranks_per_node);

  /// Makes a topology from the number of each rank's node. The numbers need not be consecutive.
  static Topology of_node_names(const std::vector<int>& names);

  int size() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(ranks_of_node_.size()); }
  int node_of(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  /// The position of the rank among those of its node.
  int local_rank(int rank) const { return local_rank_[static_cast<size_t>(rank)]; }
  const std::vector<int>& nodes_of_ranks() const { return node_of_; }
  const std::vector<int>& local_ranks() const { return local_rank_; }
  /// The ranks of a node, ascending.
  const std::vector<int>& ranks_of_node(int node) const {
    return ranks_of_node_[static_cast<size_t>(node)];
  }

  /// Returns the number of ranks of a node if all nodes have equally many and rank = node *
  /// ranks_per_node + local rank; else 0. Only then are there two hops, within a node and between
  /// nodes.
  int ranks_per_node() const { return ranks_per_node_; }

  bool operator==(const Topology&) const = default;

 private:
  std::vector<int> node_of_, local_rank_;
  std::vector<std::vector<int>> ranks_of_node_;
  int ranks_per_node_ = 1;
};

}  // namespace fp8train
