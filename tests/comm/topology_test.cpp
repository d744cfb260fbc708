#include "comm/topology.h"

#include <catch2/catch.hpp>

#include "comm/communicator.h"

namespace fp8train::test {
namespace {

TEST_CASE("ranks know their nodes", "[topology]") {
  const Topology two_by_three = Topology::blocks(6, 3);
  CHECK(two_by_three.nodes() == 2);
  CHECK(two_by_three.node_of(4) == 1);
  CHECK(two_by_three.local_rank(4) == 1);
  CHECK(two_by_three.ranks_of_node(1) == std::vector<int>{3, 4, 5});
  CHECK(two_by_three.ranks_per_node() == 3);
  CHECK(Topology::blocks(5, 3).ranks_per_node() == 0);
  CHECK(Topology({0, 1, 0, 1}).ranks_per_node() == 0);  // placed alternately
  CHECK(Topology({0, 1, 0, 1}).local_rank(3) == 1);
  CHECK(Topology().size() == 1);
}

TEST_CASE("what is sent crosses a link of its class", "[topology]") {
  const Topology nodes = Topology::blocks(8, 4);
  CHECK(all_to_all_traffic(nodes, 5, 10) == Traffic{30, 40});
  // Each byte crosses once, then goes to the three others of the node, as do those that came.
  CHECK(all_gather_traffic(nodes, 5, 10) == Traffic{60, 10});
  CHECK(all_gather_traffic(Topology::blocks(4, 4), 0, 10) == Traffic{30, 0});
  CHECK(all_gather_traffic(Topology::blocks(5, 4), 4, 10) == Traffic{0, 40});
  CHECK(broadcast_traffic(nodes, 5, 10, 5) == Traffic{30, 10});
  CHECK(broadcast_traffic(nodes, 0, 10, 5) == Traffic{30, 0});
  CHECK(broadcast_traffic(nodes, 4, 10, 5) == Traffic{0, 0});
}

}  // namespace
}  // namespace fp8train::test
