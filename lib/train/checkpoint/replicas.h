#pragma once
// Checks that ranks still have the same bits of the values that each of them stores. A flipped bit
// in the memory of one rank, or a library that computes differently on one node, makes replicas
// drift apart silently: the first rank's checkpoints then hold weights that no rank has trained.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/engine.h"

namespace fp8train {

/// The hash of one thing that the ranks of a group hold alike.
struct ReplicaHash {
  std::string name;
  uint64_t hash = 0;
  /// state, expert_state or stage; pipe: the table of embeddings that the first and the last
  /// pipeline stage share, 0 in others.
  Group group = Group::state;
};

/// Hashes the tensors that all ranks of an engine hold alike between steps: the values of all
/// parameters, or their gathered form if ranks share them, and the scales and histories of delayed
/// scaling. Collective if values are gathered; gathered values are out of date afterwards. Waits
/// for the device.
std::vector<ReplicaHash> hash_replicas(Engine& engine);

/// Compares with the other ranks; those of a pipeline stage have the same names. Throws
/// DeviceError, on all ranks, naming the first tensor that differs and the ranks that differ from
/// most others. Collective.
void compare_replicas(const Mesh& mesh, const std::vector<ReplicaHash>& mine, int64_t step);

}  // namespace fp8train
