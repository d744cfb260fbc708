#pragma once
// The ranks of a run as a grid with named axes. Code asks the mesh for the number that it needs:
// the world rank (which rank writes files and logs), the index along the data axis (which batches a
// rank reads, and over which ranks gradients are summed), the size of an axis. Today all ranks lie
// along the data axis; the other axes have size 1. A mesh points to a communicator, which outlives
// it, and sends nothing.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"
#include "tensor/axis.h"

namespace fp8train {

/// The number of ranks along each axis, and the nodes that they run on.
struct MeshShape {
  int pipeline = 1, data = 1, context = 1, tensor = 1;
  int nodes = 1;                ///< nodes that the ranks run on
  bool nodes_are_alike = true;  ///< as many ranks on each, one node after another

  /// All ranks along the data axis.
  static MeshShape along_data(const Topology& ranks);

  int of(Axis axis) const;
  int ranks() const { return pipeline * data * context * tensor; }
  /// 0: nodes are not alike (Topology::ranks_per_node).
  int ranks_per_node() const { return nodes_are_alike ? ranks() / nodes : 0; }
};

class Mesh {
 public:
  /// Makes the mesh of one rank.
  Mesh() = default;
  /// Lays all ranks of `world` along the data axis. Null or one rank: no communicator is used.
  explicit Mesh(Communicator* world);
  /// world rank = ((pipeline * shape.data + data) * shape.context + context) * shape.tensor +
  /// tensor. `world` may be null: a mesh of which only positions are asked. Throws InternalError if
  /// the numbers do not fit together.
  Mesh(const MeshShape& shape, int world_rank, Communicator* world);

  const MeshShape& shape() const { return shape_; }
  int world_rank() const { return world_rank_; }
  int world_size() const { return shape_.ranks(); }
  /// Whether this rank writes the files of a run and speaks.
  bool leads() const { return world_rank_ == 0; }

  /// The position of this rank along an axis, and the number of ranks there.
  int index(Axis axis) const;
  int size(Axis axis) const { return shape_.of(axis); }

  /// Returns the communicator of all ranks; null where there is one rank or the mesh has none.
  Communicator* world() const { return world_; }
  /// Returns the ranks that differ from this one along the axis only; null where the axis has size
  /// 1. Throws InternalError where that is neither this rank alone nor the whole world, since such
  /// groups do not exist yet, or where the mesh has no communicator.
  Communicator* group(Axis axis) const;

  /// Returns the value of each rank, in the order of world ranks. Collective; waits.
  template <typename T>
  std::vector<T> gather_values(const T& value) const {
    return world_ == nullptr ? std::vector<T>{value} : world_->all_gather_values(value);
  }

 private:
  MeshShape shape_;
  int world_rank_ = 0;
  Communicator* world_ = nullptr;
};

}  // namespace fp8train
