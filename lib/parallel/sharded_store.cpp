#include "parallel/sharded_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace fp8train {
namespace {

/// Elements begin .. of a flat view.
View from_element(const View& flat, int64_t begin, const Shape& shape) {
  return {flat.as<std::byte>() + storage_bytes(flat.dtype, {begin}), flat.dtype, shape};
}

}  // namespace

ShardedStore::ShardedStore(const ParameterStore& parameters, StoreLayout layout)
    : parameters_(&parameters.all()), layout_(std::move(layout)) {
  check(layout_.parts.size() == parameters_->size(), "a layout is of the parameters of the store");
}

size_t ShardedStore::index_of(const Parameter& parameter) {
  for (size_t i = 0; i < all().size(); ++i) {  // callers ask in order, and often for one again
    last_index_ = (last_index_ + (i == 0 ? 0 : 1)) % all().size();
    if (all()[last_index_].get() == &parameter) {
      return last_index_;
    }
  }
  throw InternalError("the parameter is in this store");
}

const Parameter& ShardedStore::first_of(size_t segment) const {
  return *all()[layout_.segments[segment].parameters.front()];
}

bool ShardedStore::gathers_values(size_t segment) const {
  return first_of(segment).gathered.is_value();
}

bool ShardedStore::shard_is_in_place(size_t segment) const {
  return gathers_values(segment) && layout_.segments[segment].values_stay;
}

/// Returns the first element of a parameter in its segment.
int64_t ShardedStore::begin_of(size_t parameter) const {
  const StoreLayout::Segment& segment = layout_.segments[layout_.parts[parameter].segment];
  const auto member = std::find(segment.parameters.begin(), segment.parameters.end(), parameter);
  return segment.begins[static_cast<size_t>(member - segment.parameters.begin())];
}

void ShardedStore::allocate(Device& device) {
  allocate_wholes(device);
  allocate_operands(device);
  allocate_shards(device);
  find_views();
  allocate_block_amax(device, false);
  allocate_block_amax(device, true);
}

View ShardedStore::shared_slot(Device& device, size_t segment, MemoryCategory category, DType dtype,
                               int64_t count) {
  const size_t unit = layout_.segments[segment].unit;
  return slots_.take(device, layout_.slot_groups[unit], unit, category, dtype, {count});
}

/// Of a whole value, which layers read where a shard of it is for the optimizer alone.
MemoryCategory on_device(MemoryCategory category) {
  return category == MemoryCategory::offloaded ? MemoryCategory::master_weights : category;
}

void ShardedStore::allocate_wholes(Device& device) {
  for (size_t i = 0; i < all().size(); ++i) {
    const Parameter& parameter = *all()[i];
    const int queue = static_cast<int>(layout_.parts[i].segment);
    const bool whole = parameter.gathered.is_value();
    const int64_t alignment = range_alignment(parameter.formats.gradient_wire);
    values_.add(parameter.formats.value, whole ? parameter.shape : Shape{0},
                on_device(value_category(parameter)), queue, alignment);
    if (parameter.trained) {
      gradients_.add(running_gradient(parameter.formats, true), parameter.shape,
                     MemoryCategory::gradients, queue, alignment);
    } else {
      gradients_.skip();
    }
  }
  const auto elements = [this](int queue, int64_t used) {
    return used == 0 ? 0 : layout_.elements(layout_.segments[static_cast<size_t>(queue)]);
  };
  values_.allocate(device, {elements, [&](int queue, DType dtype, int64_t count) {
                              const auto index = static_cast<size_t>(queue);
                              const StoreLayout::Segment& segment = layout_.segments[index];
                              return segment.values_stay || !gathers_values(index)
                                         ? View{}
                                         : shared_slot(device, index,
                                                       on_device(value_category(first_of(index))),
                                                       dtype, count);
                            }});
  gradients_.allocate(device, {elements, [&](int queue, DType dtype, int64_t count) {
                                 const auto index = static_cast<size_t>(queue);
                                 return layout_.segments[index].gradients_stay
                                            ? View{}
                                            : shared_slot(device, index, MemoryCategory::gradients,
                                                          dtype, count);
                               }});
}

void ShardedStore::allocate_shards(Device& device) {
  value_shard_.resize(all().size());
  for (size_t i = 0; i < all().size(); ++i) {
    const StoreLayout::Part& part = layout_.parts[i];
    if (!shard_is_in_place(part.segment)) {
      const ParameterFormats& formats = all()[i]->formats;
      value_shard_[i] =
          value_shards_.add(formats.value, {part.count}, value_category(*all()[i]),
                            static_cast<int>(part.segment), range_alignment(formats.gradient_wire));
    }
  }
  value_shards_.allocate(device, {[this](int queue, int64_t /*used*/) {
                                    return layout_.segments[static_cast<size_t>(queue)].shard;
                                  },
                                  [this](int queue, DType dtype, int64_t /*count*/) {
                                    const auto segment = static_cast<size_t>(queue);
                                    const bool upper_half =
                                        holds_gathered(first_of(segment)) && dtype == DType::bf16;
                                    return upper_half ? gathered_operands_[segment].shard : View{};
                                  }});
  gradient_shard_.resize(layout_.segments.size());
  for (size_t i = 0; i < layout_.segments.size(); ++i) {
    const StoreLayout::Segment& segment = layout_.segments[i];
    const TensorFormat& stored = first_of(i).formats.gradient;
    if (has_gradients(i) && (!segment.gradients_stay || stored.is_scaled())) {
      const bool as_stored = stored == plain(DType::bf16) && !layout_.adds_shards;
      const TensorFormat sum = as_stored ? stored : TensorFormat{};
      gradient_shard_[i] = gradient_shards_.add(sum, {segment.shard}, MemoryCategory::gradients);
    }
  }
  gradient_shards_.allocate(device);
}

void ShardedStore::allocate_operands(Device& device) {
  gathered_operands_.resize(layout_.segments.size());
  operand_is_taken_.resize(all().size());
  for (size_t i = 0; i < layout_.segments.size(); ++i) {
    if (gathers_values(i)) {
      continue;
    }
    const StoreLayout::Segment& segment = layout_.segments[i];
    const Parameter& first = first_of(i);
    const MemoryCategory category =
        first.formats.is_master ? MemoryCategory::weights : MemoryCategory::quantized_weights;
    const int64_t elements = layout_.elements(segment);
    Operand& operand = gathered_operands_[i];
    if (segment.values_stay) {
      operand.own_whole = Tensor(device, first.gathered.dtype, {elements}, category);
      operand.whole = operand.own_whole;
      operand.shard = from_element(operand.whole, layout_.shard_begin(segment), {segment.shard});
    } else {
      operand.whole = shared_slot(device, i, category, first.gathered.dtype, elements);
      operand.own_shard = Tensor(device, first.gathered.dtype, {segment.shard}, category);
      operand.shard = operand.own_shard;
    }
    fill_zero(device, operand.shard);
  }
}

void ShardedStore::allocate_block_amax(Device& device, bool of_experts) {
  const auto blocks_of = [of_experts](const Parameter& parameter) {
    return parameter.of_experts() == of_experts ? parameter.gathered.blocks : 0;
  };
  int64_t count = 0;
  for (const auto& parameter : all()) {
    count += blocks_of(*parameter);
  }
  if (count == 0) {
    return;
  }
  count = round_up(count, (of_experts ? layout_.of_experts : layout_.shared).count);
  Tensor& amax = block_amax_[of_experts ? 1 : 0];
  amax = Tensor(device, DType::f32, {count}, MemoryCategory::scaling_state);
  fill_zero(device, amax);
  int64_t begin = 0;
  for (const auto& parameter : all()) {
    if (const int64_t own = blocks_of(*parameter); own > 0) {
      parameter->updated.block_amax = from_element(amax, begin, {own});
      begin += own;
    }
  }
}

void ShardedStore::find_views() {
  for (size_t i = 0; i < all().size(); ++i) {
    Parameter& parameter = *all()[i];
    const StoreLayout::Part& part = layout_.parts[i];
    const bool in_place = shard_is_in_place(part.segment);
    Encoded value = values_.at(i);
    if (!parameter.gathered.is_value()) {
      value = {View{}, parameter.formats.value, View{}};
    } else if (!in_place && parameter.formats.value.block == per::tensor) {
      value.scales = value_shards_.at(value_shard_[i]).scales;
    }
    parameter.set_stored(value, gradients_.at(i));
    const int64_t shard_begin = layout_.shard_begin(layout_.segments[part.segment]);
    const int64_t before = part.count == 0 ? 0 : begin_of(i) + part.first - shard_begin;
    parameter.updated = {.value = in_place ? part_of(value, part.first, part.count)
                                           : value_shards_.at(value_shard_[i]),
                         .gradient = parameter.trained
                                         ? part_of(gradient_shard(part.segment), before, part.count)
                                         : Encoded{},
                         .gathered = {},
                         .first = part.first,
                         .whole = false};
    if (!parameter.gathered.is_value()) {
      parameter.updated.gathered =
          from_element(gathered_operands_[part.segment].shard, before, {part.count});
    }
  }
}

Encoded ShardedStore::whole(const StoredPool& pool, size_t segment) const {
  return pool.whole(pool.buffer_of(layout_.segments[segment].parameters.front()));
}

Encoded ShardedStore::value_shard(size_t segment) const {
  const StoreLayout::Segment& of = layout_.segments[segment];
  if (shard_is_in_place(segment)) {
    return part_of(whole(values_, segment), layout_.shard_begin(of), of.shard);
  }
  return value_shards_.whole(value_shards_.buffer_of(value_shard_[of.parameters.front()]));
}

Encoded ShardedStore::gathered_shard(size_t segment) const {
  return gathers_values(segment) ? value_shard(segment)
                                 : Encoded(gathered_operands_[segment].shard);
}

Encoded ShardedStore::gathered_whole(size_t segment) const {
  return gathers_values(segment) ? whole(values_, segment)
                                 : Encoded(gathered_operands_[segment].whole);
}

Encoded ShardedStore::gathered_value(size_t parameter) const {
  const Parameter& of = *all()[parameter];
  return of.gathered.is_value()
             ? of.stored_value
             : Encoded(from_element(gathered_operands_[layout_.parts[parameter].segment].whole,
                                    begin_of(parameter), of.shape));
}

std::vector<View> ShardedStore::cleared_gradients(size_t segment, bool overwrites) const {
  if (!has_gradients(segment)) {
    return {};
  }
  const size_t buffer = gradients_.buffer_of(layout_.segments[segment].parameters.front());
  std::vector<bool> overwritten(overwrites ? all().size() : 0);
  for (const size_t position : gradients_.tensors_of(buffer)) {
    if (overwrites) {
      overwritten[position] = all()[position]->overwritten;
    }
  }
  return gradients_.words_without(buffer, overwritten);
}

View ShardedStore::gradient_shard(size_t segment) const {
  const StoreLayout::Segment& of = layout_.segments[segment];
  const Encoded all = whole_gradients(segment);
  if (!of.gradients_stay || first_of(segment).formats.gradient.is_scaled()) {
    return gradient_shards_.at(gradient_shard_[segment]).codes;
  }
  return part_of(all, layout_.shard_begin(of), of.shard).codes;
}

std::vector<View> ShardedStore::updated_gradients() const {
  std::vector<View> shards;
  for (size_t i = 0; i < layout_.segments.size(); ++i) {
    if (has_gradients(i)) {
      shards.push_back(gradient_shard(i));
    }
  }
  return shards;
}

std::vector<View> ShardedStore::shared_scales(bool of_experts) const {
  std::vector<View> scales;
  for (size_t i = 0; i < layout_.segments.size(); ++i) {
    const Encoded shard = value_shard(i);
    if (layout_.segments[i].of_experts == of_experts && shard.format.is_scaled() &&
        shard.format.block == per::tensor) {
      scales.push_back(shard.scales);
    }
  }
  return scales;
}

View ShardedStore::operand_memory(Device& device, const Parameter& parameter,
                                  MemoryCategory category, DType dtype, const Shape& shape) {
  const size_t index = index_of(parameter);
  const size_t segment = layout_.parts[index].segment;
  if (!parameter.gathered.is_value() && !operand_is_taken_[index]) {
    operand_is_taken_[index] = true;
    check(dtype == parameter.gathered.dtype && shape == parameter.shape,
          "the first operand of a weight is what is gathered of it");
    return from_element(gathered_operands_[segment].whole, begin_of(index), shape);
  }
  if (!layout_.operands_share_slots) {
    return operands_.emplace_back(device, dtype, shape, category);
  }
  return reshaped(shared_slot(device, segment, category, dtype, shape.count()), shape);
}

}  // namespace fp8train
