// ZeRO: ranks share the work of the optimizer, and with it the memory, by elements
// (parallel/store_layout.h). Gradients are summed while backward still runs, and each rank stores
// its shard of the sums, which its optimizer reads; with StrategySettings::shard_ranks ranks of
// several groups store the same one. New values are gathered from all ranks: once
// per step where what layers make of them stays (stages 1 and 2), else before each use of a unit,
// while the unit before is in use (stage 3). All memory is taken by attach().

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/exchange/reduce.h"
#include "ops/pointwise/elementwise.h"
#include "parallel/sharded_store.h"
#include "parallel/strategies.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// Returns the group of this rank where so many ranks, one after another, make one.
std::unique_ptr<Communicator> group_of(Communicator& ranks, int size) {
  std::vector<int> group_of_rank;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    group_of_rank.push_back(rank / size);
  }
  return ranks.group(group_of_rank);
}

class Zero final : public RankedStrategy, public ParameterGatherer {
 public:
  using RankedStrategy::RankedStrategy;

  StoreSharing sharing() const override {
    return {.exchanged = true,
            .shards =
                [site = site()](const ParameterStore& store) {
                  return std::make_unique<ShardedStore>(store, shard_layout(store, site));
                },
            .owners = {}};
  }
  void attach(Device& device, ParameterStore& parameters, const View& amax) override;

  GradientListener* begin_exchange(bool last) override {
    buckets_->begin(device().stream(), last);
    return &*buckets_;
  }
  void finish_exchange(double* squared_norm) override;
  RankCombiner* combiner() override { return this; }  // which sums the norm of the shards
  void values_changed() override;
  ParameterGatherer* gatherer() override { return this; }
  void for_each_replica(const std::function<void(const Parameter&, const Encoded&)>& use) override;

  // These are the functions of ParameterGatherer.
  bool gathers_per_pass() const override { return layout().operands_share_slots; }
  Gathered gather(size_t unit, size_t next) override;
  void begin_gradients(size_t unit, bool overwrites) override;
  using RankedStrategy::combine_amax;  // of few values
  void combine_amax(const View& amax, bool of_experts) override;

 protected:
  Communicator& sharing_ranks() const override { return group_ == nullptr ? comm() : *group_; }
  Communicator& counting_ranks() const override {
    return stage_group_ == nullptr ? RankedStrategy::counting_ranks() : *stage_group_;
  }
  void largest_of_experts(const View& values) override {
    all_combine(*expert_comm(), device().stream(), values, ops::Combine::max, combine_scratch());
  }

 private:
  /// The ranks that share one copy of the experts of this one; null: as expert_comm().
  Communicator* expert_ranks() const {
    return expert_group_ == nullptr ? expert_comm() : expert_group_.get();
  }
  struct Unit {
    enum class State : uint8_t { elsewhere, coming, here } state = State::elsewhere;
    bool used = false;  ///< since values have changed
    std::vector<size_t> segments;
    std::vector<size_t> queues;  ///< of the exchanges of its gradients
    std::vector<Work> coming;
    TraceFlight flight;
  };
  ShardedStore& shards() const { return static_cast<ShardedStore&>(*parameters().shards()); }
  const StoreLayout& layout() const { return shards().layout(); }
  std::vector<GradientBuckets::Bucket> make_buckets();
  void start(size_t unit);
  void finish(Unit& unit);
  void gather(size_t segment, std::vector<Work>& coming);
  void clear_gradients(size_t segment, bool overwrites);

  /// Those that share a copy; null: all ranks do. Of experts, and with other experts and parts of
  /// layers, where there are any.
  std::unique_ptr<Communicator> group_, expert_group_, stage_group_;
  std::vector<std::unique_ptr<Communicator>> own_gathers_;  ///< with orders of their own
  Communicator* gathers_[2] = {};  ///< for values, next to the exchanges; of experts: [1]
  std::vector<Unit> units_;
  std::vector<Tensor> unit_scales_;  ///< of each segment whose tensors have a scale each: ones
  std::optional<GradientBuckets> buckets_;
};

void Zero::attach(Device& device, ParameterStore& parameters, const View& amax) {
  RankedStrategy::attach(device, parameters, amax);
  if (layout().adds_shards &&
      (!parameters.automatic_scales(false).empty() || !parameters.automatic_scales(true).empty())) {
    throw KeyError("parallelism.sync_each_batch",
                   ": this plan moves the scales of its gradients once in a step, by the sums of "
                   "whole gradients; set false");
  }
  const int sharing = layout().shared.count;
  if (sharing < comm().size()) {
    group_ = group_of(comm(), sharing);
    if (expert_comm() != nullptr) {
      expert_group_ = group_of(*expert_comm(), layout().of_experts.count);
      stage_group_ = group_of(*mesh().group(Group::stage), sharing * mesh().size(Axis::tensor));
    }
  }
  Communicator* const of_segments[] = {&sharing_ranks(), expert_ranks()};
  for (size_t i = 0; i < std::size(of_segments) && of_segments[i] != nullptr; ++i) {
    gathers_[i] = of_segments[i];
    if (!comm().in_stream_order()) {
      gathers_[i] = own_gathers_.emplace_back(of_segments[i]->duplicate()).get();
    }
  }
  units_.resize(layout().slot_groups.size());
  buckets_.emplace(comm(), device, parameters.all().size(), make_buckets());
  unit_scales_.resize(layout().segments.size());
  for (size_t i = 0; i < unit_scales_.size(); ++i) {
    if (!shards().has_gradients(i)) {
      continue;
    }
    const View scales = shards().whole_gradients(i).scales;
    if (!scales.empty() && !layout().segments[i].gradients_stay) {
      unit_scales_[i] = Tensor(device, DType::f32, scales.shape, MemoryCategory::scaling_state);
      copy_from_host(device, unit_scales_[i],
                     initial_scales(shards().whole_gradients(i).format, scales.count()).data());
    }
  }
}

/// In the order in which backward completes them. Those of a unit, and those of its neighbours, can
/// be under way at the same time; the two ends of a model, which are not, share memory.
std::vector<GradientBuckets::Bucket> Zero::make_buckets() {
  for (size_t i = 0; i < layout().segments.size(); ++i) {
    units_[layout().segments[i].unit].segments.push_back(i);
  }
  size_t widest = 0;
  for (const Unit& unit : units_) {
    widest = std::max(widest, unit.segments.size());
  }
  std::vector<GradientBuckets::Bucket> buckets;
  for (size_t unit = units_.size(); unit-- > 0;) {
    const bool is_end = unit == 0 || unit + 1 == units_.size();
    std::vector<size_t> by_size = units_[unit].segments;  // large ones share slots with large ones
    std::stable_sort(by_size.begin(), by_size.end(), [this](size_t a, size_t b) {
      return layout().segments[a].shard > layout().segments[b].shard;
    });
    for (const size_t index : by_size) {
      if (!shards().has_gradients(index)) {
        continue;
      }
      const StoreLayout::Segment& segment = layout().segments[index];
      const ParameterFormats& formats = parameters().all()[segment.parameters.front()]->formats;
      const int sharing = layout().ranks_of(segment).count;
      Communicator* const own = segment.of_experts ? expert_comm() : nullptr;
      const size_t first_queue = ((is_end ? 2 : unit % 2) + (own == nullptr ? 0 : 3)) * widest;
      units_[unit].queues.push_back(first_queue + units_[unit].queues.size());
      // As in data_parallel.cpp, not within the braces.
      const GradientWire wire = gradient_wire(formats.gradient_wire, site().self_exact,
                                              (own == nullptr ? comm() : *own).topology(), sharing);
      buckets.push_back(
          {.parameters = segment.parameters,
           .gradients = {.gradients = shards().whole_gradients(index),
                         .tensors = segment.begins,
                         .piece_bytes = site().settings.bucket_bytes,
                         .automatic = parameters().controllers_of(segment.parameters),
                         .scale_ranks = own == nullptr ? site().scale_ranks() : nullptr,
                         .shard_ranks = sharing,
                         .adds = layout().adds_shards},
           .wire = wire,
           .shard = shards().gradient_shard(index),
           .queue = units_[unit].queues.back(),
           .comm = own});
    }
  }
  return buckets;
}

ParameterGatherer::Gathered Zero::gather(size_t unit, size_t next) {
  Unit& wanted = units_[unit];
  Gathered gathered = Gathered::stay;
  if (wanted.state != Unit::State::here) {
    if (wanted.state == Unit::State::elsewhere) {
      start(unit);
    }
    finish(wanted);
    gathered = wanted.used ? Gathered::again : Gathered::new_;
    wanted.used = true;
  }
  const bool available = next != kNone && layout().slot_groups[next] != layout().slot_groups[unit];
  if (available && units_[next].state == Unit::State::elsewhere) {
    start(next);
  }
  return gathered;
}

void Zero::start(size_t unit) {
  const TraceSpan span("start_gather");
  for (size_t other = 0; other < units_.size(); ++other) {
    if (other != unit && layout().slot_groups[other] == layout().slot_groups[unit]) {
      finish(units_[other]);
      units_[other].state = Unit::State::elsewhere;
    }
  }
  Unit& started = units_[unit];
  started.state = Unit::State::coming;
  started.flight = TraceFlight(TraceKind::exchange, "gather");
  for (const size_t segment : started.segments) {
    gather(segment, started.coming);
  }
}

void Zero::gather(size_t segment, std::vector<Work>& coming) {
  const Encoded shard = shards().gathered_shard(segment);
  const Encoded whole = shards().gathered_whole(segment);
  Communicator& ranks = *gathers_[layout().segments[segment].of_experts ? 1 : 0];
  const auto gather_part = [&](const View& own, const View& all) {
    coming.push_back(ranks.all_gather(device().stream(), own.data, all.data, own.bytes()));
  };
  gather_part(shard.codes, whole.codes);
  if (shard.format.block.is_group()) {
    gather_part(shard.scales, whole.scales);
  }
}

void Zero::combine_amax(const View& amax, bool of_experts) {
  Communicator& ranks = of_experts ? *expert_ranks() : sharing_ranks();
  const bool in_shares = amax.count() % ranks.size() == 0;
  (in_shares ? all_combine_shares : all_combine)(ranks, device().stream(), amax, ops::Combine::max,
                                                 combine_scratch());
}

void Zero::finish(Unit& unit) {
  if (unit.state != Unit::State::coming) {
    return;
  }
  const TraceSpan span("finish_gather");
  for (Work& work : unit.coming) {
    work.wait();
  }
  unit.coming.clear();
  if (unit.flight.active() && comm().in_stream_order()) {
    device().synchronize();  // a timeline shows when it was over
  }
  unit.flight.end();
  unit.state = Unit::State::here;
}

void Zero::begin_gradients(size_t unit, bool overwrites) {
  const auto shares_slots = [this](size_t segment) {
    return !layout().segments[segment].gradients_stay;
  };
  const std::vector<size_t>& segments = units_[unit].segments;
  if (std::none_of(segments.begin(), segments.end(), shares_slots)) {
    return;
  }
  for (size_t other = 0; other < units_.size(); ++other) {
    if (layout().slot_groups[other] == layout().slot_groups[unit]) {
      for (const size_t queue : units_[other].queues) {
        buckets_->finish(queue);
      }
    }
  }
  for (const size_t segment : segments) {
    clear_gradients(segment, overwrites);
  }
}

void Zero::clear_gradients(size_t segment, bool overwrites) {
  for (const View& words : shards().cleared_gradients(segment, overwrites)) {
    ops::fill(device().stream(), words, 0.0F);
  }
  if (!unit_scales_[segment].empty()) {
    ops::cast(device().stream(), unit_scales_[segment], shards().whole_gradients(segment).scales);
  }
}

/// Waits until this rank has its shards of the sums, and nobody reads its values. The norm of a
/// group is summed in it alone, and a NaN that casts have left there is one of all groups.
void Zero::finish_exchange(double* squared_norm) {
  if (group_ != nullptr) {
    all_combine(comm(), device().stream(), {squared_norm, DType::f64, {1}}, ops::Combine::sum,
                combine_scratch());
  }
  buckets_->finish();
  for (Unit& unit : units_) {
    finish(unit);
  }
}

/// Gathered values are out of date from now on.
void Zero::values_changed() {
  for (Unit& unit : units_) {
    finish(unit);
    unit.state = Unit::State::elsewhere;
    unit.used = false;
  }
}

void Zero::for_each_replica(const std::function<void(const Parameter&, const Encoded&)>& use) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    gather(unit, kNone);
    for (const size_t segment : units_[unit].segments) {
      for (const size_t parameter : layout().segments[segment].parameters) {
        use(*parameters().all()[parameter], shards().gathered_value(parameter));
      }
    }
  }
  values_changed();
}

}  // namespace

std::unique_ptr<Strategy> make_zero(const StrategySite& site) {
  return std::make_unique<Zero>(site);
}

}  // namespace fp8train
