// NCCL's functions before the fake's ranks.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/nccl_library.h"
#include "nccl_clique.h"
#include "nccl_fake.h"

using fp8train::shim::NcclClique;
using fp8train::shim::NcclStart;

/// Not freed at its end, so that a later use is detected.
struct ncclComm {
  std::shared_ptr<NcclClique> clique;
  int rank = 0;
  uint64_t sequence = 0;
  int splits = 0;
  int polls = 0;  ///< that still say in progress
  bool finalizing = false, destroyed = false, aborted = false;
  /// Of a split, while its ranks come: where the new one is written, in what color and order.
  ncclComm_t* made = nullptr;
  int color = 0, key = 0;
};

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex mutex;  // operations that are over ask for others that are

fp8train::shim::NcclCounts counts;
std::map<std::string, std::shared_ptr<NcclClique>> cliques;  // by unique id
std::vector<std::unique_ptr<ncclComm>> comms;
uint64_t ids = 0;
bool network_breaks = false;
std::atomic<bool> is_installed = true;
thread_local std::string last_refusal;
thread_local int group_depth = 0;
struct Grouped {
  ncclComm_t comm;
  cudaStream_t stream;
  fp8train::shim::NcclPart part;
};
thread_local std::vector<Grouped> grouped;

ncclResult_t refuse(const std::string& why, ncclResult_t result = ncclInvalidUsage) {
  last_refusal = why;
  counts.misused += 1;
  return result;
}

/// One rank's side of an operation.
class Taken final : public fp8train::shim::LateWork {
 public:
  Taken(ncclComm_t comm, uint64_t sequence) : comm_(comm), sequence_(sequence) {}
  bool over() override {
    const Lock lock(mutex);
    return comm_->aborted || comm_->clique->try_operation(sequence_);
  }

 private:
  ncclComm_t comm_;
  uint64_t sequence_;
};

/// Whether the communicator still waits for something.
bool in_progress(ncclComm_t comm) {
  NcclClique& clique = *comm->clique;
  if (clique.joined < clique.size() || (comm->finalizing && clique.finalized < clique.size())) {
    return true;
  }
  return comm->made != nullptr || comm->polls > 0;
}

ncclResult_t usable(ncclComm_t comm) {
  if (comm == nullptr || comm->destroyed || comm->aborted) {
    return refuse("a communicator is used after its end", ncclInvalidArgument);
  }
  if (comm->clique->error != ncclSuccess) {
    return comm->clique->error;
  }
  if (in_progress(comm) || comm->finalizing) {
    return refuse("a communicator is used while it is in progress or ending");
  }
  return ncclSuccess;
}

ncclComm_t add_comm(std::shared_ptr<NcclClique> clique, int rank) {
  auto& comm = comms.emplace_back(std::make_unique<ncclComm>());
  comm->clique = std::move(clique);
  comm->rank = rank;
  comm->polls = 2;
  counts.alive += 1;
  return comm.get();
}

ncclResult_t start(ncclComm_t comm, cudaStream_t stream, std::unique_ptr<NcclStart> operation) {
  if (const ncclResult_t result = usable(comm)) {
    return result;
  }
  if (!fp8train::shim::follows_all(stream)) {
    return refuse("an operation's stream does not wait for work that its data may come from");
  }
  counts.operations += 1;
  operation->before = fp8train::shim::unfinished(stream);
  const uint64_t sequence = comm->sequence++;
  NcclClique& clique = *comm->clique;
  const std::string broken = clique.join(sequence, comm->rank, std::move(operation));
  if (!broken.empty()) {
    refuse(broken);
    clique.fail(ncclInvalidUsage, broken);
  } else if (network_breaks) {
    clique.fail(ncclRemoteError, "the network is broken");
  }
  comm->polls = 1;
  fp8train::shim::submit_late(stream, std::make_shared<Taken>(comm, sequence));
  return ncclInProgress;
}

ncclResult_t collective(const char* name, const void* send, void* recv, size_t count, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  const Lock lock(mutex);
  auto operation = std::make_unique<NcclStart>();
  operation->name = name;
  operation->root = root;
  operation->parts.push_back({.from = send, .to = recv, .bytes = count});
  return start(comm, stream, std::move(operation));
}

/// A rank's part of a split is complete when all have come: then each color is a clique.
void advance_split(ncclComm_t comm) {
  NcclClique& parent = *comm->clique;
  const int number = comm->splits - 1;
  if (comm->made == nullptr || parent.split_arrivals[number] < parent.size()) {
    return;
  }
  auto& split = parent.splits[{number, comm->color}];
  if (split.made == nullptr) {
    std::sort(split.members.begin(), split.members.end());
    split.made = std::make_shared<NcclClique>(static_cast<int>(split.members.size()));
  }
  int rank = 0;
  while (split.members[static_cast<size_t>(rank)] != std::pair(comm->key, comm->rank)) {
    ++rank;
  }
  split.made->joined += 1;
  *std::exchange(comm->made, nullptr) = add_comm(split.made, rank);
}

}  // namespace

namespace fp8train {

namespace shim {
NcclCounts nccl_counts() {
  const Lock lock(mutex);
  return counts;
}
void break_nccl_network(bool broken) {
  const Lock lock(mutex);
  network_breaks = broken;
}
void set_nccl_installed(bool installed) {
  is_installed = installed;
}
}  // namespace shim

std::string why_nccl_is_unusable() {
  return is_installed ? "" : "libnccl.so.2 is not found (the fake's test says so)";
}

void* nccl_function(const char* name) {
#define FP8TRAIN_NAMED(function) \
  if (std::string_view(name) == #function) return reinterpret_cast<void*>(&::function)
  FP8TRAIN_NAMED(ncclGetUniqueId);
  FP8TRAIN_NAMED(ncclCommInitRankConfig);
  FP8TRAIN_NAMED(ncclCommSplit);
  FP8TRAIN_NAMED(ncclCommFinalize);
  FP8TRAIN_NAMED(ncclCommDestroy);
  FP8TRAIN_NAMED(ncclCommAbort);
  FP8TRAIN_NAMED(ncclCommGetAsyncError);
  FP8TRAIN_NAMED(ncclGetErrorString);
  FP8TRAIN_NAMED(ncclGetLastError);
  FP8TRAIN_NAMED(ncclAllGather);
  FP8TRAIN_NAMED(ncclBroadcast);
  FP8TRAIN_NAMED(ncclSend);
  FP8TRAIN_NAMED(ncclRecv);
  FP8TRAIN_NAMED(ncclGroupStart);
  FP8TRAIN_NAMED(ncclGroupEnd);
#undef FP8TRAIN_NAMED
  throw CommError(std::string("the fake NCCL has no ") + name);
}

}  // namespace fp8train

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(mutex);
  *id = {};
  std::strcpy(id->internal, ("fake " + std::to_string(++ids)).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Lock lock(mutex);
  if (config == nullptr || config->blocking != 0) {
    return refuse("a communicator that blocks");
  }
  if (std::strncmp(id.internal, "fake ", 5) != 0 || rank < 0 || rank >= ranks) {
    return refuse("a unique id or a rank that is none", ncclInvalidArgument);
  }
  std::shared_ptr<NcclClique>& clique = cliques[id.internal];
  if (clique == nullptr) {
    clique = std::make_shared<NcclClique>(ranks);
  }
  int device = 0;
  cudaGetDevice(&device);
  for (const int other : clique->devices) {
    if (other == device) {
      clique->fail(ncclInvalidUsage, "Duplicate GPU detected");
    }
  }
  clique->devices[static_cast<size_t>(rank)] = device;
  clique->joined += 1;
  *comm = add_comm(clique, rank);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  const Lock lock(mutex);
  if (const ncclResult_t result = usable(comm)) {
    return result;
  }
  if (config == nullptr || config->blocking != 0) {
    return refuse("a communicator that blocks");
  }
  comm->made = made;
  comm->color = color;
  comm->key = key;
  const int number = comm->splits++;
  comm->clique->splits[{number, color}].members.emplace_back(key, comm->rank);
  comm->clique->split_arrivals[number] += 1;
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(mutex);
  if (const ncclResult_t result = usable(comm)) {
    return result;
  }
  comm->finalizing = true;
  comm->clique->finalized += 1;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(mutex);
  if (comm->destroyed || comm->aborted || !comm->finalizing || in_progress(comm)) {
    return refuse("a communicator is destroyed before it is finalized, or twice");
  }
  comm->destroyed = true;
  counts.destroyed += 1;
  counts.alive -= 1;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Lock lock(mutex);
  if (comm->destroyed || comm->aborted) {
    return refuse("a communicator is aborted after its end", ncclInvalidArgument);
  }
  comm->aborted = true;
  comm->clique->aborted += 1;
  counts.aborted += 1;
  counts.alive -= 1;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Lock lock(mutex);
  if (comm == nullptr || comm->destroyed || comm->aborted) {
    return refuse("a communicator is asked after its end", ncclInvalidArgument);
  }
  *state = comm->clique->error;
  if (*state != ncclSuccess) {
    return ncclSuccess;
  }
  advance_split(comm);
  *state = in_progress(comm) ? ncclInProgress : ncclSuccess;
  comm->polls -= comm->polls > 0 ? 1 : 0;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError    ? "remote process exited or there was a network error"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "an error of the fake";
}

const char* ncclGetLastError(ncclComm_t comm) {
  const Lock lock(mutex);
  if (comm == nullptr || comm->clique->why.empty()) {
    return last_refusal.c_str();
  }
  return comm->clique->why.c_str();
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t /*type*/,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective("all_gather", send, recv, count, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t /*type*/,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return collective("broadcast", send, recv, count, root, comm, stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t /*type*/, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (group_depth == 0) {
    return refuse("a send outside of a group waits for its receiver for ever");
  }
  grouped.push_back({comm, stream, {.sends = true, .peer = peer, .from = send, .bytes = count}});
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t /*type*/, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (group_depth == 0) {
    return refuse("a receive outside of a group waits for its sender for ever");
  }
  grouped.push_back({comm, stream, {.peer = peer, .to = recv, .bytes = count}});
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  group_depth += 1;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) {
    return refuse("a group ends that was not started");
  }
  if (--group_depth > 0 || grouped.empty()) {
    return ncclSuccess;
  }
  const Lock lock(mutex);
  const std::vector<Grouped> all = std::exchange(grouped, {});
  auto operation = std::make_unique<NcclStart>();
  operation->name = "group";
  for (const Grouped& one : all) {
    if (one.comm != all.front().comm || one.stream != all.front().stream) {
      return refuse("the fake knows groups of one communicator and stream");
    }
    operation->parts.push_back(one.part);
  }
  return start(all.front().comm, all.front().stream, std::move(operation));
}
}
