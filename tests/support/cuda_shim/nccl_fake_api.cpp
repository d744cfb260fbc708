// NCCL's functions before the fake's ranks.

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nccl_clique.h"
#include "nccl_fake.h"
#include "nccl_fake_ranks.h"

using fp8train::shim::NcclClique;
using fp8train::shim::NcclStart;

/// Not freed at its end, so that a later use is detected.
struct ncclComm {
  std::shared_ptr<NcclClique> clique;
  int rank = 0, device = 0;
  bool shares = false;  ///< ncclConfig_t::splitShare: groups use its buffers
  uint64_t sequence = 0;
  int splits = 0;
  int polls = 0;  ///< that still say in progress
  bool finalizing = false, destroyed = false, aborted = false;
  ncclComm_t* made = nullptr;  ///< of a split, while its ranks come: where the new one is written
  bool made_shares = false;    ///< of that one
};

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex mutex;  // operations that are over ask for others that are

fp8train::shim::NcclCounts counts;
std::map<std::string, std::shared_ptr<NcclClique>> cliques;  // by unique id
std::vector<std::unique_ptr<ncclComm>> comms;
bool network_breaks = false;
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

/// One rank's side of a group of sends and receives.
class TakenGroup final : public fp8train::shim::LateWork {
 public:
  TakenGroup(ncclComm_t comm, std::shared_ptr<NcclStart> start)
      : comm_(comm), start_(std::move(start)) {}
  bool over() override {
    const std::unique_lock<std::recursive_mutex> lock(mutex, std::try_to_lock);
    return lock.owns_lock() && (comm_->aborted || comm_->clique->try_group(*start_, comm_->rank));
  }

 private:
  ncclComm_t comm_;
  std::shared_ptr<NcclStart> start_;
};

/// One rank's side of a collective.
class Taken final : public fp8train::shim::LateWork {
 public:
  Taken(ncclComm_t comm, uint64_t sequence) : comm_(comm), sequence_(sequence) {}
  bool over() override {
    const std::unique_lock<std::recursive_mutex> lock(mutex, std::try_to_lock);
    return lock.owns_lock() &&
           (comm_->aborted || comm_->clique->try_operation(sequence_, comm_->rank));
  }

 private:
  ncclComm_t comm_;
  uint64_t sequence_;
};

/// Whether the communicator still waits for something.
bool in_progress(ncclComm_t comm) {
  NcclClique& clique = *comm->clique;
  clique.refresh();
  if (!clique.complete() || (comm->finalizing && !clique.finalized())) {
    return true;
  }
  return comm->made != nullptr || comm->polls > 0;
}

ncclResult_t usable(ncclComm_t comm) {
  if (comm == nullptr || comm->destroyed || comm->aborted) {
    return refuse("a communicator is used after its end", ncclInvalidArgument);
  }
  comm->clique->refresh();
  if (comm->clique->error() != ncclSuccess) {
    return comm->clique->error();
  }
  if (in_progress(comm) || comm->finalizing) {
    return refuse("a communicator is used while it is in progress or ending");
  }
  return ncclSuccess;
}

ncclComm_t add_comm(std::shared_ptr<NcclClique> clique, int rank, int device, bool shares,
                    bool has_buffers) {
  clique->enter(rank, device);
  auto& comm = comms.emplace_back(std::make_unique<ncclComm>());
  comm->clique = std::move(clique);
  comm->rank = rank;
  comm->device = device;
  comm->shares = shares;
  comm->polls = 2;
  counts.alive += 1;
  counts.with_buffers += has_buffers ? 1 : 0;
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
  NcclClique& clique = *comm->clique;
  std::shared_ptr<fp8train::shim::LateWork> work;
  std::string broken;
  if (operation->name == "group") {
    const std::shared_ptr<NcclStart> group = std::move(operation);
    broken = clique.start_group(comm->rank, group);
    work = std::make_shared<TakenGroup>(comm, group);
  } else {
    const uint64_t sequence = comm->sequence++;
    broken = clique.start(sequence, comm->rank, std::move(operation));
    work = std::make_shared<Taken>(comm, sequence);
  }
  if (!broken.empty()) {
    refuse(broken);
    clique.fail(ncclInvalidUsage, broken);
  } else if (network_breaks) {
    clique.fail(ncclRemoteError, "the network is broken");
  }
  comm->polls = 1;
  fp8train::shim::submit_late(stream, work);
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
  if (comm->made == nullptr) {
    return;
  }
  const auto [clique, rank] = comm->clique->split(comm->splits - 1, comm->rank);
  if (clique != nullptr) {
    *std::exchange(comm->made, nullptr) =
        add_comm(clique, rank, comm->device, comm->made_shares, !comm->shares);
  }
}

}  // namespace

namespace fp8train::shim {

NcclCounts nccl_counts() {
  const Lock lock(mutex);
  return counts;
}
void break_nccl_network(bool broken) {
  const Lock lock(mutex);
  network_breaks = broken;
}

}  // namespace fp8train::shim

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22000;  // 2.20, as little as the library asks for
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(mutex);
  *id = {};
  const std::string name = "fake " + fp8train::shim::new_clique_name();
  if (name.size() >= sizeof(id->internal)) {
    return refuse("the folder's name is too long for a unique id: " + name);
  }
  std::strcpy(id->internal, name.c_str());
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
    clique = std::make_shared<NcclClique>(ranks, fp8train::shim::board_of(id.internal + 5));
  }
  int device = 0;
  cudaGetDevice(&device);
  *comm = add_comm(clique, rank, device, config->splitShare == 1, true);
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
  comm->made_shares = config->splitShare == 1;
  comm->clique->arrive(comm->splits++, comm->rank, color, key);
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(mutex);
  if (const ncclResult_t result = usable(comm)) {
    return result;
  }
  comm->finalizing = true;
  comm->clique->finalize(comm->rank);
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(mutex);
  if (comm->destroyed || comm->aborted || !comm->finalizing || in_progress(comm)) {
    return refuse("a communicator is destroyed before it is finalized, or twice");
  }
  comm->destroyed = true;
  comm->clique->leave(comm->rank);
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
  comm->clique->abort(comm->rank);
  comm->clique->leave(comm->rank);
  counts.aborted += 1;
  counts.alive -= 1;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Lock lock(mutex);
  if (comm == nullptr || comm->destroyed || comm->aborted) {
    return refuse("a communicator is asked after its end", ncclInvalidArgument);
  }
  comm->clique->refresh();
  *state = comm->clique->error();
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
  if (comm == nullptr || comm->clique->why().empty()) {
    return last_refusal.c_str();
  }
  return comm->clique->why().c_str();
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
