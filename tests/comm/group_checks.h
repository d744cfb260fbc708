#pragma once
// Random programs of collectives and messages over the groups of a mesh, on any communicator.

#include <cstdint>
#include <vector>

#include "comm/mesh.h"
#include "device/device.h"

namespace fp8train::test {

struct ProgramCounts {
  int meshes = 1;
  int programs = 1;              ///< of each mesh
  bool in_stream_order = false;  ///< both ends start the same messages in the same call
};

/// Called on all ranks with the same seed and counts. Makes random meshes of the ranks of `world`
/// and runs random programs over their groups, with data on `device`. What arrives is compared with
/// what each rank computes alone, and the bytes sent with a count made by hand and with a dry
/// run's. Throws std::runtime_error that says what is wrong.
void check_programs(Communicator& world, Device& device, uint64_t seed,
                    const ProgramCounts& counts);

/// The world ranks of the rank's group, found from the definition of groups and not from colors.
std::vector<int> members_of(const MeshShape& shape, Group group, int rank);

/// Every shape of a mesh with this number of ranks.
std::vector<MeshShape> shapes_of(const Topology& ranks);

}  // namespace fp8train::test
