#pragma once
// The delayed scales of a checkpoint: scaling.safetensors, or a file of each stage of a pipeline.
// Plans without any have no such file.

#include <filesystem>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "io/checkpoint/checkpoint.h"
#include "precision/scaling_state.h"

namespace fp8train {

/// Whether a checkpoint holds scales.
bool has_scaling(const std::filesystem::path& folder);

/// Returns the name of the file that has the scales of this rank's stage.
std::string scaling_file_of(const Mesh& mesh);

/// Returns the tensors of that file. All ranks call it; those after the first one of a stage send
/// what is their own and return none.
std::vector<ScalingState::SavedTensor> scaling_tensors(const ScalingState& scaling,
                                                       const Mesh& mesh);

/// Loads the delayed scales of a checkpoint and the steps that they have seen, for rank `rank` of
/// `ranks` of a Group::state; nothing to do for plans without any. Scales that each rank has of its
/// own (AmaxReduction::none) are those that this rank saved. If another number of ranks saved them,
/// they are those of rank `rank` modulo that number, and a line of the result says so. `manifest`:
/// the file is hashed while it is read, if it is not null. Throws CheckpointError when the scales
/// are missing, differ in shape or are not what the manifest has the hash of.
std::vector<std::string> load_scaling(const std::filesystem::path& folder, ScalingState& scaling,
                                      int rank = 0, int ranks = 1,
                                      const CheckpointManifest* manifest = nullptr);

}  // namespace fp8train
