#pragma once
// Communicators of NCCL as our communicator uses them. They are non-blocking, so no call blocks the
// thread. A watchdog aborts all communicators of a rank if an operation does not end in its time or
// NCCL reports an error. Only the implementation of this header includes nccl.h.

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "comm/exchange/side_stream.h"
#include "comm/watchdog.h"
#include "device/device.h"

namespace fp8train {

/// The id that ranks must share to find each other.
using NcclId = std::array<char, 128>;
/// Makes the id on one of the ranks. Throws CommError.
NcclId new_nccl_id();

/// The device memory of an operation, as in Communicator. `what` names it in messages.
struct NcclCall {
  Collective collective = Collective::all_gather;
  std::string what;
  double timeout = 0;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t bytes = 0;
  int root = 0;
  std::span<const Message> messages = {};
};

/// The state that a communicator and its groups share on one rank: they fail together.
class NcclFamily {
 public:
  virtual ~NcclFamily() = default;
  virtual Watchdog& watchdog() = 0;
  SideStream& side() { return side_; }
  Device& device() { return *device_; }
  int rank() const { return rank_; }

 protected:
  NcclFamily(Device& device, int rank) : device_(&device), rank_(rank), side_(device) {}

 private:
  Device* device_;
  int rank_;
  SideStream side_;
};

/// One communicator. It is left when this is destroyed, in the same order on all ranks, which takes
/// at most 40 seconds; after an error or a time-out all are aborted, which takes at most 15.
class NcclGroup {
 public:
  virtual ~NcclGroup() = default;
  virtual const std::shared_ptr<NcclFamily>& family() const = 0;

  /// Makes the group of the `size` ranks with the same color, in the order of `rank`. Collective.
  /// Throws CommError.
  virtual std::shared_ptr<NcclGroup> split(int color, int rank, int size, double timeout) = 0;

  /// A barrier is an all_gather. Returns when the operation is in the side stream, and throws
  /// CommError where NCCL refuses or takes longer than the call's time.
  virtual void start(const NcclCall& call) = 0;
};

/// Joins the communicator of all ranks and waits for them. `device` outlives the group. Throws
/// CommError.
std::shared_ptr<NcclGroup> join_nccl(const NcclId& id, Device& device, int rank, int size,
                                     double timeout);

}  // namespace fp8train
