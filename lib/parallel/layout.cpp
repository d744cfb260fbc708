#include "parallel/layout.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"

namespace fp8train {
namespace {

/// `others`: the sizes that have taken their part of the ranks.
void check_divides(const char* key, int size, int ranks, const std::string& others) {
  if (size < 1 || ranks % size != 0) {
    throw ConfigError(fmt::format(
        "parallelism.{} is {}, which does not divide {} {}{}; the nearest size that "
        "does is {}",
        key, size, ranks, ranks == 1 ? "rank" : "ranks", others, nearest_divisor(ranks, size)));
  }
}

}  // namespace

MeshShape mesh_shape(const ParallelLayout& layout, const Topology& ranks) {
  MeshShape shape = MeshShape::along_data(ranks);
  std::string others;
  const std::pair<const char*, int> sizes[] = {
      {"tensor", layout.tensor}, {"context", layout.context}, {"pipeline", layout.pipeline}};
  for (const auto& [key, size] : sizes) {
    check_divides(key, size, shape.data, others);
    shape.data /= size;
    if (size > 1) {
      others += others.empty() ? fmt::format(" left of {} by {} {}", ranks.size(), key, size)
                               : fmt::format(", {} {}", key, size);
    }
  }
  check_divides("expert", layout.expert, shape.data * layout.context * layout.tensor,
                " of a pipeline stage");
  shape.tensor = layout.tensor;
  shape.context = layout.context;
  shape.pipeline = layout.pipeline;
  shape.expert = layout.expert;
  return shape;
}

}  // namespace fp8train
