#pragma once
// The interface below a communicator that sends messages between pairs of ranks.

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/transfer.h"
#include "comm/work.h"

namespace fp8train {

class MessageTransport {
 public:
  virtual ~MessageTransport() = default;

  /// Moves messages without the caller's help. `sequence` counts transfers; those that are under
  /// way at the same time are at most some thousands apart. Keeps the transfer until its end.
  virtual Work start(const char* name, uint64_t sequence, Transfer transfer, double timeout) = 0;

  /// Of the ranks with the same color, in the order of `rank`. Collective.
  /// Throws TimeoutError where that takes longer than `timeout` seconds.
  virtual std::unique_ptr<MessageTransport> split(int color, int rank, double timeout) = 0;

  /// May throw CommError where the other ranks cannot be notified.
  virtual void fail(int exit_code) = 0;
  virtual const char* kind() const = 0;
};

std::unique_ptr<Communicator> make_message_communicator(std::unique_ptr<MessageTransport> transport,
                                                        Topology topology, int rank);

}  // namespace fp8train
