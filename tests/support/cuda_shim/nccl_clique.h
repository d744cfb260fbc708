#pragma once
// The ranks of a communicator of the fake NCCL, and what they have started. Everything here is
// guarded by the fake's one mutex.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nccl.h"
#include "submit.h"

namespace fp8train::shim {

/// What one rank gives to an operation. A collective has one part of each kind, a group many.
struct NcclPart {
  bool sends = false;
  int peer = 0;
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
};
struct NcclStart {
  std::string name;  ///< all_gather, broadcast, group
  int root = 0;
  std::vector<NcclPart> parts;
  std::vector<std::shared_ptr<LateWork>> before;  ///< ahead of it in the rank's stream
};

/// One operation of all ranks, as far as they have started it.
struct NcclOperation {
  std::vector<std::unique_ptr<NcclStart>> starts;
  bool done = false;
};

struct NcclClique {
  explicit NcclClique(int ranks) : devices(static_cast<size_t>(ranks), -1) {}

  int size() const { return static_cast<int>(devices.size()); }

  std::vector<int> devices;  ///< of the ranks that have joined; -1: not yet
  int joined = 0, finalized = 0;
  std::map<uint64_t, NcclOperation> operations;
  ncclResult_t error = ncclSuccess;  ///< found in the background
  std::string why;
  int aborted = 0;
  /// By split's number and color: the ranks of a new clique as they come, (key, old rank).
  struct Split {
    std::vector<std::pair<int, int>> members;
    std::shared_ptr<NcclClique> made;
  };
  std::map<std::pair<int, int>, Split> splits;
  std::map<int, int> split_arrivals;

  void fail(ncclResult_t result, const std::string& reason);
  /// Empty, or the rule that the ranks' parts break.
  std::string join(uint64_t sequence, int rank, std::unique_ptr<NcclStart> start);
  /// Does the operation if all have started it and what is before it is over.
  bool try_operation(uint64_t sequence);
};

}  // namespace fp8train::shim
