#pragma once
// The ranks of a run as a grid with named axes. Code asks the mesh for the number that it needs:
// the world rank (which rank writes files and logs), the index along the data axis (which batches a
// rank reads), the ranks of a group (over which gradients are summed). A mesh points to a
// communicator, which outlives it.

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"
#include "tensor/axis.h"

namespace fp8train {

/// Which ranks do something together.
enum class Group : uint8_t {
  world,
  tensor,        ///< parts of one layer
  context,       ///< parts of the same sequences
  state,         ///< data and context: the same parameters, which get one gradient
  stage,         ///< all ranks of one pipeline stage
  replica,       ///< those of a stage that work on the same samples
  pipe,          ///< the stages that work on the same samples, one rank of each
  expert,        ///< different experts
  expert_state,  ///< the same experts, which get one gradient
};
inline constexpr size_t kGroups = static_cast<size_t>(Group::expert_state) + 1;
/// "expert_state"
const char* name_of(Group group);

/// The number of ranks along each axis, and the nodes that they run on.
struct MeshShape {
  int pipeline = 1, data = 1, context = 1, tensor = 1;
  int expert = 1;               ///< divides data * context * tensor
  int nodes = 1;                ///< nodes that the ranks run on
  bool nodes_are_alike = true;  ///< as many ranks on each, one node after another

  /// All ranks along the data axis.
  static MeshShape along_data(const Topology& ranks);

  /// Ranks first, first + stride, ..: every axis and every group is such a series.
  struct Series {
    int stride = 1, size = 1;
    /// The number of the rank's group; those of all groups are the ranks' colors.
    int color(int rank) const { return rank % stride + rank / (stride * size) * stride; }
    int index(int rank) const { return rank / stride % size; }
    bool operator==(const Series&) const = default;
  };
  Series series(Axis axis) const;
  Series series(Group group) const;

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
  /// tensor. Makes the communicators of all groups, in one order on all ranks: collective. `world`
  /// may be null: a mesh of which only positions are asked. Throws InternalError if the numbers do
  /// not fit together.
  Mesh(const MeshShape& shape, int world_rank, Communicator* world);

  const MeshShape& shape() const { return shape_; }
  int world_rank() const { return world_rank_; }
  int world_size() const { return shape_.ranks(); }
  /// Whether this rank writes the files and the messages of a run.
  bool leads() const { return world_rank_ == 0; }

  /// The position of this rank along an axis or in a group, and the number of ranks there.
  template <typename AxisOrGroup>
  int index(AxisOrGroup of) const {
    return shape_.series(of).index(world_rank_);
  }
  template <typename AxisOrGroup>
  int size(AxisOrGroup of) const {
    return shape_.series(of).size;
  }

  /// Returns the communicator of all ranks; null where there is one rank or the mesh has none.
  Communicator* world() const { return world_; }
  /// Returns the communicator of this rank's group; null where the group has one rank. Groups of
  /// the same ranks share one, the world's if they are all: its collectives are called by one
  /// thread in the order of the program, and what overlaps them (GradientExchange, gathers of ZeRO)
  /// makes duplicates. On GPUs all groups of a rank work in one order: every rank starts the
  /// collectives of all its groups in the same order. Throws InternalError where the mesh has no
  /// communicator.
  Communicator* group(Group group) const;

  /// Returns the value of each rank, in the order of world ranks. Collective; waits.
  template <typename T>
  std::vector<T> gather_values(const T& value) const {
    return world_ == nullptr ? std::vector<T>{value} : world_->all_gather_values(value);
  }

 private:
  void make_groups();

  MeshShape shape_;
  int world_rank_ = 0;
  Communicator* world_ = nullptr;
  /// By group; copies of a mesh share them. Null: a group of one rank, or of all.
  std::vector<std::shared_ptr<Communicator>> groups_;
};

}  // namespace fp8train
