#pragma once
// One rank's part of a checkpoint, copied to host memory, so that training continues while it is
// written. The copy owns all its memory, which is used again by the next save; writing reads
// nothing else and calls no collective, so that any thread may do it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "train/checkpoint/optimizer_state.h"
#include "train/checkpoint/weights.h"

namespace fp8train {

constexpr const char* kScalingFile = "scaling.safetensors";

/// The copy in host memory of all that this rank writes into a checkpoint.
struct StateCopy {
  int64_t step = 0;
  std::string run_id;
  ModelConfig model;
  std::string base;  ///< hash of the model of which adapters are; empty: there are none, or it was
                     ///< drawn
  std::vector<CheckpointFile> texts;  ///< the first rank writes these
  WeightsCopy weights;
  std::string scaling_file = kScalingFile;
  std::vector<ScalingState::SavedTensor> scaling;  ///< the first rank of a stage writes them
  OptimizerFile optimizer;  ///< the file of a rank that has a part of the states; others have one
                            ///< without a name
};

}  // namespace fp8train
