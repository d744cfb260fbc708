#include "parallel/layout.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "base/error.h"

using namespace fp8train;

namespace {

std::string refusal(const ParallelLayout& layout, int ranks) {
  try {
    mesh_shape(layout, Topology::blocks(ranks, 8));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a layout's sizes lay the ranks over a mesh, and data takes what they leave") {
  const Topology ranks = Topology::blocks(48, 8);
  const MeshShape shape =
      mesh_shape({.tensor = 4, .context = 2, .pipeline = 3, .expert = 8}, ranks);
  CHECK(shape.data == 2);
  CHECK(shape.tensor == 4);
  CHECK(shape.context == 2);
  CHECK(shape.pipeline == 3);
  CHECK(shape.expert == 8);
  CHECK(shape.nodes == 6);
  CHECK(Mesh(shape, 47, nullptr).index(Axis::pipeline) == 2);
  CHECK(mesh_shape({}, ranks).data == 48);
}

TEST_CASE("sizes that do not divide are refused with the key and the nearest that does") {
  CHECK(refusal({.tensor = 3}, 8) ==
        "parallelism.tensor is 3, which does not divide 8 ranks; the nearest size that does is 2");
  CHECK(refusal({.tensor = 7}, 8) ==
        "parallelism.tensor is 7, which does not divide 8 ranks; the nearest size that does is 8");
  CHECK(refusal({.tensor = 0}, 8) ==
        "parallelism.tensor is 0, which does not divide 8 ranks; the nearest size that does is 1");
  CHECK(refusal({.tensor = 2, .context = 2, .pipeline = 16}, 48) ==
        "parallelism.pipeline is 16, which does not divide 12 ranks left of 48 by tensor 2, "
        "context 2; the nearest size that does is 12");
  CHECK(refusal({.tensor = 4, .pipeline = 4}, 4) ==
        "parallelism.pipeline is 4, which does not divide 1 rank left of 4 by tensor 4; the "
        "nearest size that does is 1");
  CHECK(refusal({.pipeline = 2, .expert = 8}, 8) ==
        "parallelism.expert is 8, which does not divide 4 ranks of a pipeline stage; the nearest "
        "size that does is 4");
}

TEST_CASE("blocks are dealt so that the longest part is as short as it can be") {
  using Blocks = std::vector<int64_t>;
  CHECK(deal_blocks(8, 4, 0) == Blocks{2, 2, 2, 2});
  CHECK(deal_blocks(9, 4, 0) == Blocks{2, 2, 2, 3});  // stores the fewest micro-batches
  CHECK(deal_blocks(9, 4, 0.1) == Blocks{2, 2, 3, 2});
  CHECK(deal_blocks(12, 4, 5.4) == Blocks{3, 4, 4, 1});  // GPT-2's vocabulary
  CHECK(deal_blocks(4, 4, 9) == Blocks{1, 1, 1, 1});
  Blocks of_405b(16, 8);  // as in Llama 3 (arXiv 2407.21783, section 3.3.2)
  of_405b.front() = of_405b.back() = 7;
  CHECK(deal_blocks(126, 16, 0.64) == of_405b);
  // No other way to deal them is shorter: one block fewer than in the longest part does not do.
  for (int64_t parts = 1; parts <= 6; ++parts) {
    for (int64_t blocks = parts; blocks <= 20; ++blocks) {
      for (const double head : {0.0, 0.4, 1.0, 2.7, 30.0}) {
        const Blocks dealt = deal_blocks(blocks, parts, head);
        CHECK(std::accumulate(dealt.begin(), dealt.end(), int64_t{0}) == blocks);
        CHECK(std::ranges::min(dealt) >= 1);
        const double last = static_cast<double>(dealt.back()) + head;
        const double longest = std::max(last, static_cast<double>(std::ranges::max(dealt)));
        double most = 0;  // that fit into parts which are shorter
        for (int64_t part = 0; part < parts; ++part) {
          const double room = longest - (part + 1 == parts ? head : 0.0) - 1e-9;
          most += std::ceil(room) - 1;
        }
        CHECK((most < static_cast<double>(blocks) || (last == longest && dealt.back() == 1)));
      }
    }
  }
}

TEST_CASE("stages have blocks as they are dealt, or as many as asked for") {
  using Range = std::pair<int64_t, int64_t>;
  CHECK(blocks_of_part({.pipeline = 4}, 8, 3) == Range(6, 8));
  CHECK(blocks_of_part({.pipeline = 3}, 8, 0) == Range(0, 2));
  CHECK(blocks_of_part({.pipeline = 3}, 8, 1) == Range(2, 5));
  CHECK(blocks_of_part({.pipeline = 3}, 8, 2, 0.5) == Range(6, 8));
  CHECK(blocks_of_part({.pipeline = 2, .virtual_stages = 2}, 5, 3) == Range(3, 5));
  CHECK(blocks_of_part({.pipeline = 3, .stage_blocks = {1, 5, 2}}, 8, 1) == Range(1, 6));
  CHECK_THROWS_AS(blocks_of_part({.pipeline = 3, .stage_blocks = {8, 0, 0}}, 8, 0), ConfigError);
  CHECK_THROWS_AS(blocks_of_part({.pipeline = 3, .stage_blocks = {4, 4}}, 8, 0), ConfigError);
  CHECK_THROWS_AS(blocks_of_part({.pipeline = 9}, 8, 0), ConfigError);
}
