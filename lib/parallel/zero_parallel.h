#pragma once
// ZeRO: ranks share the work of the optimizer, and with it the memory (parallel/shard_layout.h).
// Gradients are summed while backward still runs, and each rank keeps its shard of the sums, which
// its optimizer reads. New values are gathered from all ranks: once per step where what layers make
// of them stays (stages 1 and 2), else before each use of a unit, while the unit before is in use
// (stage 3). All memory is taken at construction.

#include <memory>
#include <vector>

#include "base/trace.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "nn/context.h"
#include "nn/parameter.h"
#include "parallel/exchange_settings.h"
#include "parallel/gradient_buckets.h"
#include "tensor/tensor.h"

namespace fp8train {

class ZeroParallel final : public GradientListener, public ParameterGatherer {
 public:
  /// Collective. The store has a layout; all outlive this object. `combine_scratch`: device memory
  /// that combine_amax() uses. Throws ConfigError when gradients of the plan cannot cross as its
  /// wire says.
  ZeroParallel(Communicator& comm, Device& device, const ParameterStore& parameters,
               const ExchangeSettings& settings, void* combine_scratch = nullptr);

  /// Before the backward pass that completes the gradients.
  void begin() { buckets_.begin(device_->stream()); }
  void gradients_complete(size_t begin, size_t end) override { buckets_.complete(begin, end); }
  void progress() override { buckets_.progress(); }
  /// Waits until this rank has its shards of the sums, and nobody reads its values.
  void finish();

  bool gathers_per_pass() const override { return layout_->operands_take_turns; }
  Gathered gather(size_t unit, size_t next) override;
  void begin_gradients(size_t unit, bool overwrites) override;
  void combine_amax(const View& amax) override;

  /// What has been gathered is out of date.
  void values_changed();

  /// The values of a unit's parameters in their order, row-major in fp32, on every rank: through
  /// the host, without memory of the device.
  std::vector<std::vector<float>> unit_values(size_t unit);

 private:
  struct Unit {
    enum class State : uint8_t { elsewhere, coming, here } state = State::elsewhere;
    bool used = false;  ///< since values have changed
    std::vector<size_t> segments;
    std::vector<size_t> queues;  ///< of the exchanges of its gradients
    std::vector<Work> coming;
    TraceFlight flight;
  };
  std::vector<GradientBuckets::Bucket> make_buckets(const ExchangeSettings& settings);
  void start(size_t unit);
  void finish(Unit& unit);
  void gather(const StoredTensor& shard, const StoredTensor& whole, std::vector<Work>& coming);
  void clear_gradients(size_t segment, bool overwrites);
  std::vector<std::byte> gather_on_host(const View& shard);

  Communicator* comm_;
  Device* device_;
  const ParameterStore* parameters_;
  const StoreLayout* layout_;
  std::unique_ptr<Communicator> own_gathers_;  ///< with an order of its own next to the exchanges
  Communicator* gathers_;
  std::vector<Unit> units_;
  void* combine_scratch_;
  std::vector<Tensor> unit_scales_;  ///< of each segment whose tensors have a scale each: ones
  GradientBuckets buckets_;
};

}  // namespace fp8train
