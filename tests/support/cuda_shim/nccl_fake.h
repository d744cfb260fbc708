#pragma once
// A NCCL for ranks that are threads of one process, where the cuda device is the host shim
// (nccl_fake_threads.cpp), or processes of one machine, before the stand-in runtime
// (nccl_fake_processes.cpp), which find each other's notes (nccl_board.h). It enforces what NCCL
// asks for, and answers otherwise with an error that says why:
// - communicators are non-blocking ones, and nothing is called on one that is in progress;
// - one rank for a GPU (cuda_runtime_api.h: set_device_count);
// - all ranks of a communicator start the same collectives with the same sizes in the same order;
//   the nth send to a rank has as many bytes as the nth receive from there;
// - an operation's stream waits for what the rank's other streams were given before;
// - communicators end by finalizing and destroying, or by abort, and are not used afterwards.
// An operation is done as late as it may be (submit.h). One that a rank it needs has not started
// never ends, until it is aborted.

#include <cstdint>

namespace fp8train::shim {

struct NcclCounts {
  uint64_t operations = 0;  ///< collectives and groups that were started, by each rank
  uint64_t aborted = 0;     ///< communicators
  uint64_t destroyed = 0;
  uint64_t with_buffers = 0;  ///< communicators that took buffers of their own, by each rank
  int64_t alive = 0;
  uint64_t misused = 0;  ///< calls that were refused for a rule above
};
NcclCounts nccl_counts();

/// From now on operations fail in the background.
void break_nccl_network(bool broken);

/// Whether the library can be loaded; at first it can.
void set_nccl_installed(bool installed);

}  // namespace fp8train::shim
