#include "parallel/zero_parallel.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "comm/reduce.h"
#include "ops/pointwise/elementwise.h"
#include "ops/storage/storage.h"

namespace fp8train {

ZeroParallel::ZeroParallel(Communicator& comm, Device& device, const ParameterStore& parameters,
                           const ExchangeSettings& settings, void* combine_scratch)
    : comm_(&comm),
      device_(&device),
      parameters_(&parameters),
      layout_(parameters.layout()),
      own_gathers_(comm.in_stream_order() ? nullptr : comm.duplicate()),
      gathers_(own_gathers_ == nullptr ? &comm : own_gathers_.get()),
      units_(layout_->turns.size()),
      combine_scratch_(combine_scratch),
      unit_scales_(layout_->segments.size()),
      buckets_(comm, device, parameters.all().size(), make_buckets(settings)) {
  for (size_t i = 0; i < layout_->segments.size(); ++i) {
    const View scales = parameters.whole_gradients(i).scales;
    if (!scales.empty() && !layout_->segments[i].gradients_stay) {
      unit_scales_[i] = Tensor(device, DType::f32, scales.shape, MemoryCategory::scaling_state);
      copy_from_host(device, unit_scales_[i],
                     initial_scales(parameters.whole_gradients(i).format, scales.count()).data());
    }
  }
}

/// In the order in which backward completes them. Those of a unit, and those of its neighbours, can
/// be under way at the same time; the two ends of a model, which are not, share memory.
std::vector<GradientBuckets::Bucket> ZeroParallel::make_buckets(const ExchangeSettings& settings) {
  for (size_t i = 0; i < layout_->segments.size(); ++i) {
    units_[layout_->segments[i].unit].segments.push_back(i);
  }
  size_t widest = 0;
  for (const Unit& unit : units_) {
    widest = std::max(widest, unit.segments.size());
  }
  std::vector<GradientBuckets::Bucket> buckets;
  for (size_t unit = units_.size(); unit-- > 0;) {
    const bool is_end = unit == 0 || unit + 1 == units_.size();
    std::vector<size_t> by_size = units_[unit].segments;  // large ones take turns with large ones
    std::stable_sort(by_size.begin(), by_size.end(), [this](size_t a, size_t b) {
      return layout_->segments[a].shard > layout_->segments[b].shard;
    });
    for (const size_t index : by_size) {
      const StoreLayout::Segment& segment = layout_->segments[index];
      const ParameterFormats& formats = parameters_->all()[segment.parameters.front()]->formats;
      const size_t first_queue = (is_end ? 2 : unit % 2) * widest;
      units_[unit].queues.push_back(first_queue + units_[unit].queues.size());
      buckets.push_back(
          {.parameters = segment.parameters,
           .gradients = {.gradients = parameters_->whole_gradients(index),
                         .tensors = segment.begins,
                         .piece_bytes = settings.bucket_bytes,
                         .automatic = parameters_->controllers_of(segment.parameters)},
           .wire = gradient_wire(formats.gradient_wire, settings.self_exact, comm_->topology()),
           .shard = parameters_->gradient_shard(index),
           .queue = units_[unit].queues.back()});
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
  const bool available = next != kNone && layout_->turns[next] != layout_->turns[unit];
  if (available && units_[next].state == Unit::State::elsewhere) {
    start(next);
  }
  return gathered;
}

std::vector<std::byte> ZeroParallel::gather_on_host(const View& shard) {
  std::vector<std::byte> own(shard.bytes());
  copy_to_host(*device_, own.data(), shard);
  std::vector<std::byte> all(own.size() * static_cast<size_t>(layout_->ranks));
  comm_->all_gather(Communicator::host_stream(), own.data(), all.data(), own.size()).wait();
  return all;
}

std::vector<std::vector<float>> ZeroParallel::unit_values(size_t unit) {
  std::vector<std::vector<float>> values;
  const std::vector<size_t> begins = parameters_->unit_begins();
  values.resize(begins[unit + 1] - begins[unit]);
  for (const size_t index : units_[unit].segments) {
    const StoreLayout::Segment& segment = layout_->segments[index];
    const StoredTensor shard = parameters_->value_shard(index);
    const int64_t count = segment.shard * layout_->ranks;
    std::vector<std::byte> codes = gather_on_host(shard.codes);
    std::vector<std::byte> scales;
    StoredTensor whole({codes.data(), shard.format.dtype, {count}}, shard.format, {});
    const bool scaled = shard.format.is_scaled();
    const bool grouped = shard.format.block.is_group();
    if (grouped) {
      scales = gather_on_host(shard.scales);
      whole.scales = {scales.data(), DType::f32, {stored_scales(shard.format, count)}};
    }
    for (size_t i = 0; i < segment.parameters.size(); ++i) {
      const size_t parameter = segment.parameters[i];
      const int64_t elements = parameters_->all()[parameter]->shape.count();
      StoredTensor part = part_of(whole, segment.begins[i], elements);
      std::vector<std::byte> pair;
      if (scaled && !grouped) {
        const View& of_all = parameters_->all()[parameter]->updated.value.scales;
        pair.resize(of_all.bytes());
        copy_to_host(*device_, pair.data(), of_all);
        part.scales = {pair.data(), DType::f32, of_all.shape};
      }
      std::vector<float>& fp32 = values[parameter - begins[unit]];
      fp32.resize(static_cast<size_t>(elements));
      ops::read_stored(Communicator::host_stream(), part, {fp32.data(), DType::f32, {elements}});
    }
  }
  return values;
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
  started.flight = TraceFlight(TraceKind::exchange, "gather");
  for (const size_t segment : started.segments) {
    gather(parameters_->gathered_shard(segment), parameters_->gathered_whole(segment),
           started.coming);
  }
}

void ZeroParallel::gather(const StoredTensor& shard, const StoredTensor& whole,
                          std::vector<Work>& coming) {
  const Stream stream = device_->stream();
  coming.push_back(
      gathers_->all_gather(stream, shard.codes.data, whole.codes.data, shard.codes.bytes()));
  if (shard.format.block.is_group()) {
    coming.push_back(
        gathers_->all_gather(stream, shard.scales.data, whole.scales.data, shard.scales.bytes()));
  }
}

void ZeroParallel::combine_amax(const View& amax) {
  const bool in_shares = amax.count() % comm_->size() == 0;
  (in_shares ? all_combine_shares : all_combine)(*comm_, device_->stream(), amax, ops::Combine::max,
                                                 combine_scratch_);
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
  if (unit.flight.active() && comm_->in_stream_order()) {
    device_->synchronize();  // a timeline shows when it was over
  }
  unit.flight.end();
  unit.state = Unit::State::here;
}

void ZeroParallel::begin_gradients(size_t unit, bool overwrites) {
  const auto in_turn = [this](size_t segment) {
    return !layout_->segments[segment].gradients_stay;
  };
  const std::vector<size_t>& segments = units_[unit].segments;
  if (std::none_of(segments.begin(), segments.end(), in_turn)) {
    return;
  }
  for (size_t other = 0; other < units_.size(); ++other) {
    if (layout_->turns[other] == layout_->turns[unit]) {
      for (const size_t queue : units_[other].queues) {
        buckets_.finish(queue);
      }
    }
  }
  for (const size_t segment : segments) {
    clear_gradients(segment, overwrites);
  }
}

void ZeroParallel::clear_gradients(size_t segment, bool overwrites) {
  const StoredTensor gradients = parameters_->whole_gradients(segment);
  for (const View& words : parameters_->cleared_gradients(segment, overwrites)) {
    ops::fill(device_->stream(), words, 0.0F);
  }
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
