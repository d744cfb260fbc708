#include "comm/mesh.h"

#include <string>

#include "base/error.h"

namespace fp8train {

MeshShape MeshShape::along_data(const Topology& ranks) {
  return {
      .data = ranks.size(), .nodes = ranks.nodes(), .nodes_are_alike = ranks.ranks_per_node() > 0};
}

int MeshShape::of(Axis axis) const {
  switch (axis) {
    case Axis::pipeline:
      return pipeline;
    case Axis::data:
      return data;
    case Axis::context:
      return context;
    case Axis::tensor:
      return tensor;
  }
  throw InternalError("a mesh has no such axis");
}

Mesh::Mesh(Communicator* world)
    : Mesh(world == nullptr ? MeshShape() : MeshShape::along_data(world->topology()),
           world == nullptr ? 0 : world->rank(), world) {}

Mesh::Mesh(const MeshShape& shape, int world_rank, Communicator* world)
    : shape_(shape), world_rank_(world_rank), world_(shape.ranks() > 1 ? world : nullptr) {
  check(shape.pipeline > 0 && shape.data > 0 && shape.context > 0 && shape.tensor > 0,
        "every axis of a mesh has at least one rank");
  check(world_rank >= 0 && world_rank < shape.ranks(), "a rank lies in its mesh");
  check(world_ == nullptr || world_->size() == shape.ranks(), "a mesh has the ranks of its world");
}

int Mesh::index(Axis axis) const {
  int rest = world_rank_;
  for (const Axis faster : {Axis::tensor, Axis::context, Axis::data, Axis::pipeline}) {
    if (faster == axis) {
      return rest % shape_.of(axis);
    }
    rest /= shape_.of(faster);
  }
  throw InternalError("a mesh has no such axis");
}

Communicator* Mesh::group(Axis axis) const {
  if (size(axis) == 1) {
    return nullptr;
  }
  if (size(axis) != world_size() || world_ == nullptr) {
    throw InternalError(std::string("this mesh has no communicator for its ") + name_of(axis) +
                        " axis");
  }
  return world_;
}

}  // namespace fp8train
