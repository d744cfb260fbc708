// ZeRO: ranks share the optimizer's work and memory, by elements (parallel/shard_layout.h). Shards
// of sums come from the exchanges of ZeroParallel, which also gathers values.

#include <algorithm>
#include <optional>

#include "parallel/shard_layout.h"
#include "parallel/strategies.h"
#include "parallel/zero_parallel.h"

namespace fp8train {
namespace {

class Zero final : public RankedStrategy {
 public:
  using RankedStrategy::RankedStrategy;

  StoreSharing sharing() const override {
    const ShardSettings shards = {.stage = settings().zero_stage,
                                  .bucket_bytes = settings().exchange.bucket_bytes,
                                  .accumulates = settings().accumulates,
                                  .last_reads_first = settings().ties_embeddings};
    const int ranks = mesh().size(Axis::data);
    const int index = mesh().index(Axis::data);
    return {
        .exchanged = true,
        .layout =
            [=](const ParameterStore& store) { return shard_layout(store, ranks, index, shards); },
        .owners = {}};
  }
  void attach(Device& device, ParameterStore& parameters, const View& amax) override {
    RankedStrategy::attach(device, parameters, amax);
    shards_.emplace(comm(), device, parameters, settings().exchange, combine_scratch());
  }

  GradientListener* begin_exchange() override {
    shards_->begin();
    return &*shards_;
  }
  void finish_exchange(double* /*squared_norm*/) override { shards_->finish(); }
  RankCombiner* combiner() override { return this; }  // which sums the norm of the shards
  void values_changed() override { shards_->values_changed(); }
  ParameterGatherer* gatherer() override { return &*shards_; }

  void copy_values(const std::function<float*(const Parameter&)>& memory) override;
  void for_each_replica(
      const std::function<void(const std::string&, const StoredTensor&)>& use) override;

 private:
  std::optional<ZeroParallel> shards_;
};

void Zero::copy_values(const std::function<float*(const Parameter&)>& memory) {
  const std::vector<size_t> begins = parameters().unit_begins();
  for (size_t unit = 0; unit + 1 < begins.size(); ++unit) {
    const std::vector<std::vector<float>> gathered = shards_->unit_values(unit);
    for (size_t i = begins[unit]; i < begins[unit + 1]; ++i) {
      float* to = memory(*parameters().all()[i]);
      if (to != nullptr) {
        std::copy(gathered[i - begins[unit]].begin(), gathered[i - begins[unit]].end(), to);
      }
    }
  }
}

void Zero::for_each_replica(
    const std::function<void(const std::string&, const StoredTensor&)>& use) {
  const ParameterStore& store = parameters();
  const std::vector<StoreLayout::Segment>& segments = store.layout()->segments;
  for (size_t unit = 0; unit < store.layout()->turns.size(); ++unit) {
    shards_->gather(unit, ParameterGatherer::kNone);
    for (size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].unit == unit) {
        use(store.all()[segments[i].parameters.front()]->name, store.gathered_whole(i));
      }
    }
  }
  shards_->values_changed();
}

}  // namespace

std::unique_ptr<Strategy> make_zero(const Mesh& mesh, const StrategySettings& settings) {
  return std::make_unique<Zero>(mesh, settings);
}

}  // namespace fp8train
