#include "comm/mesh.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/error.h"

namespace fp8train {

const char* name_of(Group group) {
  constexpr const char* kNames[] = {"world",   "tensor", "context", "state",       "stage",
                                    "replica", "pipe",   "expert",  "expert_state"};
  static_assert(std::size(kNames) == kGroups);
  return kNames[static_cast<size_t>(group)];
}

MeshShape MeshShape::along_data(const Topology& ranks) {
  return {
      .data = ranks.size(), .nodes = ranks.nodes(), .nodes_are_alike = ranks.ranks_per_node() > 0};
}

MeshShape::Series MeshShape::series(Axis axis) const {
  const Series of_axis[] = {series(Group::pipe),
                            {.stride = context * tensor, .size = data},
                            series(Group::context),
                            series(Group::tensor),
                            series(Group::expert)};
  return of_axis[static_cast<size_t>(axis)];
}

MeshShape::Series MeshShape::series(Group group) const {
  const int of_stage = data * context * tensor;
  const Series of_group[] = {{1, ranks()},
                             {1, tensor},
                             {tensor, context},
                             {tensor, data * context},
                             {1, of_stage},
                             {1, context * tensor},
                             {of_stage, pipeline},
                             {1, expert},
                             {expert, of_stage / expert}};
  static_assert(std::size(of_group) == kGroups);
  return of_group[static_cast<size_t>(group)];
}

Mesh::Mesh(Communicator* world)
    : Mesh(world == nullptr ? MeshShape() : MeshShape::along_data(world->topology()),
           world == nullptr ? 0 : world->rank(), world) {}

Mesh::Mesh(const MeshShape& shape, int world_rank, Communicator* world)
    : shape_(shape), world_rank_(world_rank), world_(shape.ranks() > 1 ? world : nullptr) {
  check(shape.pipeline > 0 && shape.data > 0 && shape.context > 0 && shape.tensor > 0 &&
            shape.expert > 0,
        "every axis of a mesh has at least one rank");
  check(shape.data * shape.context * shape.tensor % shape.expert == 0,
        "experts are laid over whole parts of a stage");
  check(world_rank >= 0 && world_rank < shape.ranks(), "a rank lies in its mesh");
  check(world_ == nullptr || world_->size() == shape.ranks(), "a mesh has the ranks of its world");
  if (world_ != nullptr) {
    make_groups();
  }
}

/// Also those that this rank's stage has no use for: the other ranks would wait for it.
void Mesh::make_groups() {
  std::vector<MeshShape::Series> made;  // of groups_
  for (size_t i = 0; i < kGroups; ++i) {
    const MeshShape::Series& series = made.emplace_back(shape_.series(static_cast<Group>(i)));
    const auto same = std::find(made.begin(), made.end(), series) - made.begin();
    if (i == 0 || series.size == 1) {
      groups_.emplace_back();
    } else if (same < static_cast<std::ptrdiff_t>(i)) {
      groups_.push_back(groups_[static_cast<size_t>(same)]);
    } else {
      std::vector<int> colors;
      for (int rank = 0; rank < world_size(); ++rank) {
        colors.push_back(series.color(rank));
      }
      groups_.push_back(world_->group(colors));
    }
  }
}

Communicator* Mesh::group(Group group) const {
  if (size(group) == 1) {
    return nullptr;
  }
  if (world_ == nullptr) {
    throw InternalError(std::string("this mesh has no communicator for its ") + name_of(group) +
                        " group");
  }
  Communicator* const own = groups_[static_cast<size_t>(group)].get();
  return own == nullptr ? world_ : own;
}

}  // namespace fp8train
