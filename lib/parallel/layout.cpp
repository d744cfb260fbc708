#include "parallel/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/key_error.h"
#include "base/nearest.h"
#include "base/text.h"

namespace fp8train {
namespace {

/// `others`: the sizes that have taken their part of the ranks.
void check_divides(const char* key, int64_t size, int64_t ranks, const std::string& others) {
  if (size < 1 || ranks % size != 0) {
    throw KeyError(
        fmt::format("parallelism.{}", key),
        fmt::format(" is {}, which does not divide {}{}; the nearest size that does is {}", size,
                    counted(ranks, "rank"), others, nearest_divisor(ranks, size)));
  }
}

void check_parts(const ParallelLayout& layout) {
  const auto parts = static_cast<uint64_t>(layout.tensor_parts);
  if (parts != 0 && (!std::has_single_bit(parts) || layout.tensor_parts % layout.tensor != 0)) {
    throw KeyError("parallelism.tensor_parts",
                   fmt::format(" is {}; it is a power of two that parallelism.tensor, {}, "
                               "divides{}",
                               parts, layout.tensor,
                               std::has_single_bit(static_cast<uint64_t>(layout.tensor))
                                   ? fmt::format(": {} or more", layout.tensor)
                                   : ", which is none with this number of ranks; leave it out"));
  }
}

}  // namespace

MeshShape mesh_shape(const ParallelLayout& layout, const Topology& ranks) {
  MeshShape shape = MeshShape::along_data(ranks);
  std::string others;
  const std::pair<const char*, int64_t> sizes[] = {
      {"tensor", layout.tensor}, {"context", layout.context}, {"pipeline", layout.pipeline}};
  for (const auto& [key, size] : sizes) {
    check_divides(key, size, shape.data, others);
    shape.data /= static_cast<int>(size);
    if (size > 1) {
      others += others.empty() ? fmt::format(" left of {} by {} {}", ranks.size(), key, size)
                               : fmt::format(", {} {}", key, size);
    }
  }
  check_parts(layout);
  check_divides("expert", layout.expert, shape.data * layout.context * layout.tensor,
                layout.pipeline > 1 ? " of a pipeline stage" : "");
  shape.tensor = static_cast<int>(layout.tensor);
  shape.context = static_cast<int>(layout.context);
  shape.pipeline = static_cast<int>(layout.pipeline);
  shape.expert = static_cast<int>(layout.expert);
  return shape;
}

std::vector<int64_t> deal_blocks(int64_t blocks, int64_t parts, double head_blocks) {
  std::vector<int64_t> dealt(static_cast<size_t>(parts), 1);
  for (int64_t left = blocks - parts; left > 0; --left) {
    size_t shortest = dealt.size() - 1;
    double time = static_cast<double>(dealt.back()) + head_blocks;
    for (size_t part = dealt.size() - 1; part-- > 0;) {
      if (static_cast<double>(dealt[part]) < time) {
        time = static_cast<double>(dealt[part]);
        shortest = part;
      }
    }
    ++dealt[shortest];
  }
  return dealt;
}

std::pair<int64_t, int64_t> blocks_of_part(const ParallelLayout& layout, int64_t blocks,
                                           int64_t part, double head_blocks) {
  const int64_t parts = layout.pipeline * layout.virtual_stages;
  if (layout.pipeline > blocks) {
    throw KeyError(
        "parallelism.pipeline",
        fmt::format(" is {}, and the model has {}: a stage needs one at least; the nearest "
                    "size that works is {}",
                    layout.pipeline, counted(blocks, "block"), blocks));
  }
  if (parts > blocks) {
    throw KeyError("parallelism.virtual_stages",
                   fmt::format(" is {} in each of {} stages, and the model has {}: each needs one "
                               "at least; the nearest number that works is {}",
                               layout.virtual_stages, layout.pipeline, counted(blocks, "block"),
                               blocks / layout.pipeline));
  }
  const std::vector<int64_t> given =
      layout.stage_blocks.empty() ? deal_blocks(blocks, parts, head_blocks) : layout.stage_blocks;
  const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
  if (std::ssize(given) != parts || sum != blocks || std::ranges::min(given) < 1) {
    throw KeyError(
        "parallelism.stage_blocks",
        fmt::format(
            ": {} take {} that add up to {} blocks, each at least 1, and not {} that add up to {}",
            layout.virtual_stages == 1
                ? counted(parts, "stage")
                : fmt::format("{} stages of {} chunks", layout.pipeline, layout.virtual_stages),
            counted(parts, "number"), blocks, std::ssize(given), sum));
  }
  const int64_t first = std::accumulate(given.begin(), given.begin() + part, int64_t{0});
  return {first, first + given[static_cast<size_t>(part)]};
}

Mesh make_mesh(const ParallelLayout& layout, Communicator* world) {
  return world == nullptr ? Mesh()
                          : Mesh(mesh_shape(layout, world->topology()), world->rank(), world);
}

}  // namespace fp8train
