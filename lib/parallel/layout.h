#pragma once
// How many ranks share the work along each axis, as a user asks for it. Pure data.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/mesh.h"
#include "parallel/pipeline_schedule.h"

namespace fp8train {

/// How the ranks of the context axis compute attention over whole sequences.
enum class ContextKind : uint8_t {
  heads,   ///< they swap rows for heads (nn/context_exchange.h)
  gather,  ///< they gather keys and values (nn/context_exchange.h)
};
inline constexpr std::pair<ContextKind, std::string_view> kContextKinds[] = {
    {ContextKind::heads, "heads"}, {ContextKind::gather, "gather"}};

/// The sizes of axes. The size of the data axis follows from the number of ranks.
struct ParallelLayout {
  int64_t tensor = 1;                             ///< parallelism.tensor
  int64_t context = 1;                            ///< parallelism.context
  ContextKind context_kind = ContextKind::heads;  ///< parallelism.context_kind
  int64_t pipeline = 1;                           ///< parallelism.pipeline
  int64_t expert = 1;  ///< parallelism.expert: divides data * context * tensor
  /// parallelism.tensor_parts: partial results of which each sum over the ranks of the tensor axis
  /// consists, also where one rank has them all. 0: as many as ranks.
  int64_t tensor_parts = 0;
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;  ///< parallelism.schedule
  std::string schedule_file;  ///< parallelism.schedule_file: has the order instead; empty: none
  PipelineSchedule given_schedule;  ///< that of the file, or another one; empty: make_schedule()
  /// parallelism.virtual_stages: chunks of consecutive blocks that each pipeline stage has. Chunk c
  /// of stage s is part c * pipeline + s of the model.
  int64_t virtual_stages = 1;
  /// parallelism.stage_blocks: blocks of each part; empty: as deal_blocks() deals them.
  std::vector<int64_t> stage_blocks;

  /// Returns how many partial results a rank makes of each such sum.
  int64_t parts_of_rank() const { return tensor_parts == 0 ? 1 : tensor_parts / tensor; }
  PipelineShape pipeline_shape(int64_t micro_batches) const {
    return {static_cast<int>(pipeline), static_cast<int>(virtual_stages), micro_batches};
  }
  /// Whether weight gradients are actions of their own.
  bool splits_backward() const {
    return pipeline > 1 && (given_schedule.empty() ? schedule == ScheduleKind::zero_bubble
                                                   : given_schedule.splits());
  }
  /// Whether the order repeats itself, with any number of micro-batches.
  bool is_periodic() const {
    return given_schedule.empty() && schedule != ScheduleKind::zero_bubble;
  }

  bool operator==(const ParallelLayout&) const = default;
};

/// Lays the ranks over the axes. Throws ConfigError, with the key and the nearest value that works,
/// where the ranks do not fit.
MeshShape mesh_shape(const ParallelLayout& layout, const Topology& ranks);
/// Makes the mesh of a run's ranks; null: of one rank. Collective. Throws as mesh_shape() does.
Mesh make_mesh(const ParallelLayout& layout, Communicator* world);

/// Deals a model's blocks to the parts of a pipeline, one at least to each, so that the part that
/// takes longest takes as short as it can. The last part has the head, which takes as long as
/// `head_blocks` blocks. Of equal parts later ones have more blocks: they store fewer
/// micro-batches, and the first one stores the embedding.
std::vector<int64_t> deal_blocks(int64_t blocks, int64_t parts, double head_blocks);

/// Returns the first block of a part of the model, and that of the next one. `head_blocks`: as in
/// deal_blocks(). Throws ConfigError where the model's blocks are not divided among all parts.
std::pair<int64_t, int64_t> blocks_of_part(const ParallelLayout& layout, int64_t blocks,
                                           int64_t part, double head_blocks = 0);

}  // namespace fp8train
