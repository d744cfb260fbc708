#include "parallel/zero_parallel.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "ops/elementwise.h"

namespace fp8train {

ZeroParallel::ZeroParallel(Communicator& comm, Device& device, const ParameterStore& parameters,
                           bool self_exact)
    : comm_(&comm),
      device_(&device),
      parameters_(&parameters),
      layout_(parameters.layout()),
      gathers_(comm.duplicate()),
      units_(layout_->turns.size()),
      unit_scales_(layout_->segments.size()),
      buckets_(comm, device, parameters.all().size(), make_buckets(self_exact)) {
  for (size_t i = 0; i < layout_->segments.size(); ++i) {
    const View scales = parameters.whole_gradients(i).scales;
    if (!scales.empty() && !layout_->segments[i].gradients_stay) {
      std::vector<float> initial(static_cast<size_t>(scales.count()), 1.0F);
      if (parameters.whole_gradients(i).format.granularity == Granularity::tensor) {
        for (size_t at = 1; at < initial.size(); at += 2) {
          initial[at] = 0.0F;  // the place for an amax
        }
      }
      unit_scales_[i] = Tensor(device, DType::f32, scales.shape, MemoryCategory::scaling_state);
      copy_from_host(device, unit_scales_[i], initial.data());
    }
  }
}

/// In the order in which backward completes them. Those of a unit, and those of the unit before,
/// can be under way at the same time.
std::vector<GradientBuckets::Bucket> ZeroParallel::make_buckets(bool self_exact) {
  for (size_t i = 0; i < layout_->segments.size(); ++i) {
    units_[layout_->segments[i].unit].segments.push_back(i);
  }
  size_t widest = 0;
  for (const Unit& unit : units_) {
    widest = std::max(widest, unit.segments.size());
  }
  std::vector<GradientBuckets::Bucket> buckets;
  for (size_t unit = units_.size(); unit-- > 0;) {
    for (const size_t index : units_[unit].segments) {
      const StoreLayout::Segment& segment = layout_->segments[index];
      const ParameterFormats& formats = parameters_->all()[segment.parameters.front()]->formats;
      units_[unit].lanes.push_back(unit % 2 * widest + units_[unit].lanes.size());
      buckets.push_back(
          {.parameters = segment.parameters,
           .gradients = {parameters_->whole_gradients(index), segment.begins},
           .wire = gradient_wire(formats.gradient_wire, self_exact, comm_->topology()),
           .shard = parameters_->gradient_shard(index),
           .lane = units_[unit].lanes.back()});
    }
  }
  return buckets;
}

ParameterGatherer::Gathered ZeroParallel::gather(size_t unit, size_t next) {
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
  const bool room = next != kNone && layout_->turns[next] != layout_->turns[unit];
  if (room && units_[next].state == Unit::State::elsewhere) {
    start(next);
  }
  return gathered;
}

void ZeroParallel::gather_values(size_t unit) {
  finish(units_[unit]);
  start(unit);
  finish(units_[unit]);
  units_[unit].state = Unit::State::elsewhere;  // layers have made nothing of them
}

void ZeroParallel::start(size_t unit) {
  const TraceSpan span("start_gather");
  for (size_t other = 0; other < units_.size(); ++other) {
    if (other != unit && layout_->turns[other] == layout_->turns[unit]) {
      finish(units_[other]);
      units_[other].state = Unit::State::elsewhere;
    }
  }
  Unit& started = units_[unit];
  started.state = Unit::State::coming;
  for (const size_t segment : started.segments) {
    const StoredTensor shard = parameters_->value_shard(segment);
    const StoredTensor whole = parameters_->whole_values(segment);
    gather_bytes(started, shard.codes, whole.codes);
    if (shard.format.granularity == Granularity::group) {
      gather_bytes(started, shard.scales, whole.scales);
    }
  }
}

void ZeroParallel::gather_bytes(Unit& unit, const View& shard, const View& whole) {
  unit.coming.push_back(
      gathers_->all_gather(device_->stream(), shard.data, whole.data, shard.bytes()));
}

void ZeroParallel::finish(Unit& unit) {
  if (unit.state != Unit::State::coming) {
    return;
  }
  const TraceSpan span("finish_gather");
  for (Work& work : unit.coming) {
    work.wait();
  }
  unit.coming.clear();
  unit.state = Unit::State::here;
}

void ZeroParallel::begin_gradients(size_t unit) {
  const auto in_turn = [this](size_t segment) {
    return !layout_->segments[segment].gradients_stay;
  };
  const std::vector<size_t>& segments = units_[unit].segments;
  if (std::none_of(segments.begin(), segments.end(), in_turn)) {
    return;
  }
  for (size_t other = 0; other < units_.size(); ++other) {
    if (layout_->turns[other] == layout_->turns[unit]) {
      for (const size_t lane : units_[other].lanes) {
        buckets_.finish(lane);
      }
    }
  }
  for (const size_t segment : segments) {
    clear_gradients(segment);
  }
}

void ZeroParallel::clear_gradients(size_t segment) {
  const StoredTensor gradients = parameters_->whole_gradients(segment);
  const auto words = static_cast<int64_t>(gradients.codes.bytes() / sizeof(float));
  ops::fill(device_->stream(), {gradients.codes.data, DType::f32, {words}}, 0.0F);
  if (!unit_scales_[segment].empty()) {
    ops::cast(device_->stream(), unit_scales_[segment], gradients.scales);
  }
}

void ZeroParallel::finish() {
  buckets_.finish();
  for (Unit& unit : units_) {
    finish(unit);
  }
}

void ZeroParallel::values_changed() {
  for (Unit& unit : units_) {
    finish(unit);
    unit.state = Unit::State::elsewhere;
    unit.used = false;
  }
}

}  // namespace fp8train
