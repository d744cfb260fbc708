#pragma once
// The optimizer's state in a checkpoint, as it is stored: moments, values whose codes
// the files of weights do not have, and factors of automatic scales. There is one file,
// optimizer.safetensors, or one of each rank where ranks have parts
// (optimizer-00001-of-00004.safetensors), named as engine/state_tensors.h says. What is read does
// not depend on how many files there are, or on which rank wrote them.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/host_memory.h"
#include "engine/state_tensors.h"
#include "io/checkpoint/checkpoint.h"

namespace fp8train {

/// A file and the memory that its tensors lie in.
struct OptimizerFile {
  CheckpointFile file;
  std::vector<HostMemory> memory;
};

/// Writes the states of all parameters that this rank updates to `file`. It is empty, or was made
/// by this engine earlier: its memory is used again.
void refresh_optimizer_file(Engine& engine, OptimizerFile& file);

class SavedState;

/// Loads a rank's part of a state from files that any ranks have written.
void load_state(Device& device, const SavedState& saved, const StateTensor& entry);

/// Loads what this rank updates from the files of a checkpoint, and hashes the files meanwhile.
/// Throws CheckpointError naming the file or the tensor when something is missing, stored in
/// another format or not what the manifest has the hash of; the state of the engine is then of no
/// use.
void load_optimizer_files(const std::filesystem::path& checkpoint, Engine& engine);

/// Loads the same from a checkpoint whose plan stores moments in other formats: they are read, and
/// rounded to nearest into the formats of the engine. The whole of a tensor decides its scales, so
/// that the result does not depend on the number of ranks. Values that are stored in few bits have
/// been rounded when the weights were loaded, and factors of automatic scales begin at 1. Throws
/// CheckpointError naming what is missing.
void convert_optimizer_files(const std::filesystem::path& checkpoint, Engine& engine);

}  // namespace fp8train
