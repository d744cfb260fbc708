#pragma once
// Data parallelism (DDP): every rank has the whole model and works on batches of its own; the
// gradients are summed over the ranks while backward still runs. Parameters whose gradients lie
// side by side make a bucket; when the last of them is complete its exchange starts
// (comm/gradient_exchange.h), in the format of the plan's wire. Two exchanges are under way at a
// time. All memory is taken at construction.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/gradient_exchange.h"
#include "device/device.h"
#include "nn/context.h"
#include "nn/parameter.h"

namespace fp8train {

struct DataParallelSettings {
  int64_t bucket_bytes = int64_t{25} << 20;  ///< of gradients; one parameter may be more
  bool self_exact = false;                   ///< PrecisionPlan::self_exact
};

class DataParallel final : public GradientListener {
 public:
  /// Collective. `comm`, `device` and `parameters` outlive it. Throws ConfigError when gradients of
  /// the plan cannot cross as its wire says.
  DataParallel(Communicator& comm, Device& device, ParameterStore& parameters,
               const DataParallelSettings& settings);
  DataParallel(const DataParallel&) = delete;  // its exchanges point into it
  DataParallel& operator=(const DataParallel&) = delete;

  /// Before the backward pass that completes the gradients.
  void begin(Stream stream);

  void gradients_complete(size_t begin, size_t end) override;

  /// Waits until all gradients are sums over the ranks.
  void finish();

  size_t buckets() const { return buckets_.size(); }

 private:
  /// Exchanges that are under way at the same time need memory and an order of messages each.
  struct Lane {
    GradientExchange::Groups groups;
    Buffer scratch;
    size_t scratch_bytes = 0;
    std::optional<size_t> bucket;  ///< under way
  };
  struct Bucket {
    std::vector<size_t> parameters;
    size_t missing = 0;  ///< parameters whose gradients are not complete
    GradientExchange exchange;
  };
  void cut(size_t buffer, size_t most_bytes, std::vector<StoredPool::Stretch>& stretches) const;
  void add_bucket(Device& device, const StoredPool::Stretch& stretch, bool self_exact);
  Lane& lane_of(size_t bucket) { return lanes_[bucket % lanes_.size()]; }
  void start(size_t bucket);
  void finish(Lane& lane);

  Communicator* comm_;
  ParameterStore* parameters_;
  std::array<Lane, 2> lanes_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  ///< of each parameter
  Stream stream_{DeviceKind::cpu, nullptr, nullptr};
};

}  // namespace fp8train
