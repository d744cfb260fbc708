#include "comm/mesh.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/group_checks.h"

using namespace fp8train;

TEST_CASE("a mesh without a communicator is one rank") {
  const Mesh alone;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  for (const Mesh& mesh : {alone, Mesh(nullptr), Mesh(self.get())}) {
    CHECK(mesh.world_size() == 1);
    CHECK(mesh.world_rank() == 0);
    CHECK(mesh.leads());
    CHECK(mesh.world() == nullptr);
    CHECK(mesh.group(Group::state) == nullptr);
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
  for (const Axis axis : {Axis::pipeline, Axis::context, Axis::tensor, Axis::expert}) {
    CHECK(mesh.size(axis) == 1);
    CHECK(mesh.index(axis) == 0);
  }
  for (const Group group : {Group::world, Group::state, Group::stage, Group::expert_state}) {
    CHECK(mesh.group(group) == comm.get());  // none is made
  }
  for (const Group group :
       {Group::tensor, Group::context, Group::replica, Group::pipe, Group::expert}) {
    CHECK(mesh.group(group) == nullptr);
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
  const MeshShape shape = {.pipeline = 2, .data = 3, .context = 2, .tensor = 4, .expert = 6};
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
          CHECK(mesh.index(Axis::expert) == (rank - 1) % 6);
          CHECK(mesh.index(Group::state) == data * 2 + context);
          CHECK(mesh.index(Group::replica) == context * 4 + tensor);
          CHECK_THROWS_AS(mesh.group(Group::state), InternalError);
        }
      }
    }
  }
  CHECK(rank == shape.ranks());
  CHECK_THROWS_AS(Mesh(shape, rank, nullptr), InternalError);
  CHECK_THROWS_AS(Mesh({.data = 4, .expert = 3}, 0, nullptr), InternalError);
}

TEST_CASE("the groups of every mesh are those of their definitions") {
  for (const int ranks : {2, 6, 8, 12}) {
    const Topology nodes = Topology::blocks(ranks, 4);
    for (const MeshShape& shape : test::shapes_of(nodes)) {
      for (int rank = 0; rank < ranks; ++rank) {
        const std::unique_ptr<Communicator> comm = make_dry_run(nodes, rank);
        const Mesh mesh(shape, rank, comm.get());
        for (size_t i = 0; i < kGroups; ++i) {
          const auto group = static_cast<Group>(i);
          const std::vector<int> want = test::members_of(shape, group, rank);
          std::vector<int> members;
          for (int other = 0; const Communicator* const made = mesh.group(group);) {
            if (other == made->size()) {
              break;
            }
            members.push_back(made->world_rank(other++));
          }
          const bool alone = want.size() == 1 && members.empty();
          REQUIRE(mesh.size(group) == static_cast<int>(want.size()));
          REQUIRE(want[static_cast<size_t>(mesh.index(group))] == rank);
          REQUIRE((alone || members == want));
        }
      }
    }
  }
}

TEST_CASE("groups of the same ranks share a communicator, also in copies of a mesh") {
  const std::unique_ptr<Communicator> comm = make_dry_run(Topology::blocks(8, 8), 3);
  const Mesh mesh({.pipeline = 2, .data = 2, .tensor = 2, .expert = 2}, 3, comm.get());
  CHECK(mesh.group(Group::tensor) != comm.get());
  CHECK(mesh.group(Group::replica) == mesh.group(Group::tensor));
  CHECK(mesh.group(Group::expert) == mesh.group(Group::tensor));
  CHECK(mesh.group(Group::state) == mesh.group(Group::expert_state));
  CHECK(mesh.group(Group::stage) != mesh.group(Group::state));
  const Mesh copy = mesh;  // NOLINT(performance-unnecessary-copy-initialization)
  CHECK(copy.group(Group::pipe) == mesh.group(Group::pipe));
}
