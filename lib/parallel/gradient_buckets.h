#pragma once
// Exchanges of gradients between ranks while backward still runs: a bucket is exchanged
// when the last of its parameters' gradients is complete. Buckets of different queues can be under
// way at the same time; those of one queue run one after another, in the order in which they are
// complete, regardless of the messages that have arrived. All device memory is allocated at
// construction: for each queue as much as the largest piece of its buckets needs.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/not_copied.h"
#include "comm/exchange/gradient_exchange.h"
#include "device/device.h"
#include "nn/context.h"

namespace fp8train {

/// The name of the span in which a step waits for an exchange.
inline constexpr const char* kFinishExchangeSpan = "finish_exchange";

/// Runs the exchange of each bucket as soon as backward has completed its gradients.
class GradientBuckets final : public GradientListener, NotCopied {
 public:
  /// One bucket: its parameters, by their index in the store, and how their gradients are
  /// exchanged.
  struct Bucket {
    std::vector<size_t> parameters;
    GradientBucket gradients;
    GradientWire wire;
    View shard;  ///< where this rank's shard of the sum goes; empty if all ranks get the whole sum
    size_t queue = 0;
    /// The ranks whose gradients are added, one such communicator for a queue; null: all.
    Communicator* comm = nullptr;
  };

  /// Takes the buckets in the order in which backward completes them. `parameters` is the number of
  /// parameters of the store. Every sum is divided by the ranks of `comm`. Collective.
  GradientBuckets(Communicator& comm, Device& device, size_t parameters,
                  std::vector<Bucket> buckets);

  /// Must be called before the backward pass that completes the gradients. `last`: no later pass of
  /// the step adds to the shards.
  void begin(Stream stream, bool last);
  void gradients_complete(size_t begin, size_t end) override;
  void progress() override;
  /// Starts the exchanges of a queue that wait, and waits for all of them.
  void finish(size_t queue);
  /// Waits for all exchanges. The gradients of every bucket are complete when it returns; where
  /// communicators keep the order of the stream, for work submitted to it from then on. Throws
  /// InternalError if backward has not completed all gradients.
  void finish();

 private:
  /// Exchanges that are under way at the same time need memory each, and an order of messages,
  /// which is one for all where communicators keep the order of the stream.
  struct Queue {
    GradientExchange::Groups groups;
    Buffer scratch;
    size_t scratch_bytes = 0;
    std::optional<size_t> bucket;  ///< under way
    std::vector<size_t> waiting;   ///< complete; those from `next` on are not yet exchanged
    size_t next = 0;
  };
  struct Exchanged {
    std::vector<size_t> parameters;
    View shard;
    size_t queue = 0;
    size_t missing = 0;  ///< parameters whose gradients are not complete
    bool last = true;    ///< of the pass that has completed them
    std::unique_ptr<GradientExchange> exchange;
  };
  void progress(Queue& queue);
  void start_next(Queue& queue);
  void finish_bucket(Queue& queue);

  std::vector<Queue> queues_;
  /// Those of all queues where communicators keep the order of the stream, for each communicator.
  std::map<const Communicator*, GradientExchange::Groups> groups_;
  std::vector<Exchanged> buckets_;
  static constexpr size_t kNone = ~size_t{0};
  std::vector<size_t> bucket_of_;  ///< the bucket of each parameter; kNone: it is not trained
  float factor_;                   ///< of the sums: the gradient is the mean over ranks
  bool in_stream_order_;           ///< Communicator::in_stream_order()
  bool last_ = true;               ///< of the pass that runs
  Stream stream_{DeviceKind::cpu, nullptr, nullptr};
};

}  // namespace fp8train
