#pragma once
// How many ranks share the work along each axis, as a user asks for it. Pure data.

#include "comm/mesh.h"

namespace fp8train {

/// The sizes of axes. The size of the data axis follows from the number of ranks.
struct ParallelLayout {
  int tensor = 1;    ///< parallelism.tensor
  int context = 1;   ///< parallelism.context
  int pipeline = 1;  ///< parallelism.pipeline
  int expert = 1;    ///< parallelism.expert: divides data * context * tensor
};

/// Lays the ranks over the axes. Throws ConfigError, with the key and the nearest value that works,
/// where the ranks do not fit.
MeshShape mesh_shape(const ParallelLayout& layout, const Topology& ranks);

}  // namespace fp8train
