#include "comm/mesh.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm/backends/backends.h"

using namespace fp8train;

TEST_CASE("a mesh without a communicator is one rank") {
  const Mesh alone;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  for (const Mesh& mesh : {alone, Mesh(nullptr), Mesh(self.get())}) {
    CHECK(mesh.world_size() == 1);
    CHECK(mesh.world_rank() == 0);
    CHECK(mesh.leads());
    CHECK(mesh.world() == nullptr);
    CHECK(mesh.group(Axis::data) == nullptr);
    CHECK(mesh.gather_values(7) == std::vector<int>{7});
  }
}

TEST_CASE("all ranks of a world lie along the data axis") {
  const std::unique_ptr<Communicator> comm = make_dry_run(Topology::blocks(6, 3), 4);
  const Mesh mesh(comm.get());
  CHECK(mesh.world_size() == 6);
  CHECK(mesh.world_rank() == 4);
  CHECK(!mesh.leads());
  CHECK(mesh.index(Axis::data) == 4);
  CHECK(mesh.size(Axis::data) == 6);
  CHECK(mesh.group(Axis::data) == comm.get());
  for (const Axis axis : {Axis::pipeline, Axis::context, Axis::tensor}) {
    CHECK(mesh.size(axis) == 1);
    CHECK(mesh.index(axis) == 0);
    CHECK(mesh.group(axis) == nullptr);
  }
  CHECK(mesh.gather_values(7).size() == 6);
}

TEST_CASE("a mesh knows its nodes without a communicator") {
  const MeshShape one;
  CHECK(one.nodes == 1);
  CHECK(one.ranks_per_node() == 1);
  const MeshShape alike = MeshShape::along_data(Topology::blocks(6, 3));
  CHECK(Mesh(alike, 4, nullptr).shape().nodes == 2);
  CHECK(alike.ranks_per_node() == 3);
  const MeshShape uneven = MeshShape::along_data(Topology::blocks(5, 3));
  CHECK(uneven.nodes == 2);
  CHECK(uneven.ranks_per_node() == 0);
  const std::unique_ptr<Communicator> comm = make_dry_run(Topology::blocks(6, 3), 4);
  CHECK(Mesh(comm.get()).shape().ranks_per_node() == 3);
}

TEST_CASE("axes are laid over ranks with tensor fastest and pipeline slowest") {
  const MeshShape shape = {.pipeline = 2, .data = 3, .context = 2, .tensor = 4};
  int rank = 0;
  for (int pipeline = 0; pipeline < 2; ++pipeline) {
    for (int data = 0; data < 3; ++data) {
      for (int context = 0; context < 2; ++context) {
        for (int tensor = 0; tensor < 4; ++tensor) {
          const Mesh mesh(shape, rank++, nullptr);
          CHECK(mesh.index(Axis::pipeline) == pipeline);
          CHECK(mesh.index(Axis::data) == data);
          CHECK(mesh.index(Axis::context) == context);
          CHECK(mesh.index(Axis::tensor) == tensor);
          CHECK_THROWS_AS(mesh.group(Axis::data), InternalError);
        }
      }
    }
  }
  CHECK(rank == shape.ranks());
  CHECK_THROWS_AS(Mesh(shape, rank, nullptr), InternalError);
}
