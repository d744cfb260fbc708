#include "precision/scaling_state.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/pointwise/elementwise.h"
#include "precision/scaling_rules.h"

namespace fp8train {
namespace {

Tensor scaling_tensor(Device& device, DType dtype, const Shape& shape) {
  Tensor tensor(device, dtype, shape, MemoryCategory::scaling_state);
  fill_zero(device, tensor);
  return tensor;
}

}  // namespace

std::optional<double> SlotReport::snr_db() const {
  const double decibels = 10.0 * std::log10(sample.signal / sample.noise);
  if (!std::isfinite(decibels)) {
    return std::nullopt;
  }
  return std::round(decibels * 100.0) / 100.0;
}

ScalingState::Group& ScalingState::group_of(const TensorFormat& format, ScalingPass pass,
                                            int chunk) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const auto& group) {
    return same_rule(group->format, format) && group->pass == pass && group->chunk == chunk;
  });
  if (found != groups_.end()) {
    return **found;
  }
  if (groups_.size() == 64) {  // bits of due()
    throw ConfigError(
        "precision: more than 64 rules of scaling in all chunks of a stage; take fewer "
        "parallelism.virtual_stages, or fewer plans in precision.layers");
  }
  groups_.push_back(std::make_unique<Group>());
  groups_.back()->format = format;
  groups_.back()->pass = pass;
  groups_.back()->chunk = chunk;
  return *groups_.back();
}

const ScalingSlot* ScalingState::add(std::string layer, std::string role,
                                     const TensorFormat& format, bool of_pass) {
  check(device_ == nullptr, "slots are added before the scaling state is allocated");
  const uint64_t index = slots_.size() + absent_.size();
  auto& slots = present_ ? slots_ : absent_;
  ScalingSlot& slot = *slots.emplace_back(std::make_unique<ScalingSlot>());
  slot.layer = std::move(layer);
  slot.role = std::move(role);
  slot.format = format;
  slot.index = index;
  const bool is_current = format.policy == ScalePolicy::current && !by_blocks(format);
  slot.begins_at_zero = of_pass && (is_current || format.is_current_at_first());
  slot.scales_now = format.policy == ScalePolicy::current || format.is_current_at_first();
  if (present_) {
    const bool of_gradient = pass_ == ScalingPass::forward && slot.role.starts_with("d");
    const ScalingPass pass = of_gradient ? ScalingPass::backward : pass_;
    group_of(format, separates_passes_ ? pass : ScalingPass::both, chunk_).slots.push_back(&slot);
  }
  return &slot;
}

std::vector<const ScalingSlot*> ScalingState::of_all_stages() const {
  std::vector<const ScalingSlot*> all(slots_.size() + absent_.size());
  for (const auto* const slots : {&slots_, &absent_}) {
    for (const auto& slot : *slots) {
      all[slot->index] = slot.get();
    }
  }
  return all;
}

std::vector<std::string> ScalingState::names() const {
  std::vector<std::string> names;
  for (const ScalingSlot* const slot : of_all_stages()) {
    names.push_back(slot->layer + "." + slot->role);
  }
  return names;
}

void ScalingState::allocate(Device& device) {
  device_ = &device;
  const size_t statistics_bytes = slots_.size() * sizeof(ops::QuantizeStatistics);
  statistics_ = Buffer(device, statistics_bytes, MemoryCategory::scaling_state);
  device.fill_zero(statistics_.data(), statistics_bytes);
  const size_t sample_bytes = slots_.size() * sizeof(CastSample);
  samples_ = Buffer(device, sample_bytes, MemoryCategory::scaling_state);
  device.fill_zero(samples_.data(), sample_bytes);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i]->statistics = static_cast<ops::QuantizeStatistics*>(statistics_.data()) + i;
    slots_[i]->sample = static_cast<CastSample*>(samples_.data()) + i;
  }
  amax_ = scaling_tensor(device, DType::f32, {static_cast<int64_t>(slots_.size())});
  float* const first_amax = amax_.view().as<float>();
  int64_t shared = 0;
  for (const auto& group : groups_) {
    shared += is_of_rank(group->format) ? 0 : static_cast<int64_t>(group->slots.size());
  }
  shared_amax_ = {first_amax, DType::f32, {shared}};
  float* next_shared = first_amax;
  float* next_of_rank = first_amax + shared;
  for (const auto& group : groups_) {
    float*& next_amax = is_of_rank(group->format) ? next_of_rank : next_shared;
    // Slots that begin_pass() clears follow one another.
    std::stable_partition(group->slots.begin(), group->slots.end(),
                          [](const ScalingSlot* slot) { return !slot->begins_at_zero; });
    const auto count = static_cast<int64_t>(group->slots.size());
    const int64_t history = is_delayed(group->format) ? group->format.delayed.history_length : 0;
    const std::vector<float> ones(group->slots.size(), 1.0F);
    group->amax = {next_amax, DType::f32, {count}};
    next_amax += count;
    group->scale = scaling_tensor(device, DType::f32, {count});
    group->scale_inv = scaling_tensor(device, DType::f32, {count});
    group->history = scaling_tensor(device, DType::f32, {history, count});
    group->cursor = scaling_tensor(device, DType::i32, {count});
    if (group->format.is_current_at_first()) {
      group->updates_left = scaling_tensor(device, DType::i32, {count});
      set_updates_left(*group, group->format.delayed.history_length);
    }
    group->format_max = scaling_tensor(device, DType::f32, {count});
    copy_from_host(device, group->scale, ones.data());
    copy_from_host(device, group->scale_inv, ones.data());
    std::vector<float> maxima(group->slots.size());
    for (size_t i = 0; i < group->slots.size(); ++i) {
      ScalingSlot& slot = *group->slots[i];
      maxima[i] = format_max(slot.format.dtype);
      slot.amax = group->amax.as<float>() + i;
      slot.scale = group->scale.view().as<float>() + i;
      slot.scale_inv = group->scale_inv.view().as<float>() + i;
    }
    copy_from_host(device, group->format_max, maxima.data());
  }
  evaluated_ =
      stored_scales_of([](const Group& group) { return group.format.is_current_at_first(); });
}

bool ScalingState::rounds_stochastically() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) {
    return slot->format.rounding == Rounding::stochastic;
  });
}

bool ScalingState::keeps_state() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return is_delayed(group->format); });
}

bool ScalingState::reduces(bool ends_step) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const auto& group) {
    const TensorFormat& format = group->format;
    return is_delayed(format) && !is_of_rank(format) &&
           (ends_step || format.delayed.unit == WindowUnit::micro_batch);
  });
}

uint64_t ScalingState::due(int64_t step, bool ends_step) const {
  uint64_t groups = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const TensorFormat& format = groups_[g]->format;
    const bool updated = is_delayed(format) && step % format.delayed.interval == 0 &&
                         (ends_step || format.delayed.unit == WindowUnit::micro_batch);
    groups |= updated ? uint64_t{1} << g : 0;
  }
  return groups;
}

void ScalingState::clear_current_weights(Stream stream) const {
  for (const auto& group : groups_) {
    const int64_t weights = std::ranges::count_if(
        group->slots, [](const ScalingSlot* slot) { return !slot->begins_at_zero; });
    if (group->format.policy == ScalePolicy::current && weights > 0) {
      ops::fill(stream, {group->amax.data, DType::f32, {weights}}, 0.0F);
    }
  }
}

void ScalingState::begin_pass(Stream stream, ScalingPass pass, int chunk) const {
  for (const auto& group : groups_) {
    if (pass != ScalingPass::both && (pass != group->pass || chunk != group->chunk)) {
      continue;
    }
    const auto begins = [&](size_t i) {
      return group->slots[i]->begins_at_zero && group->slots[i]->scales_now;
    };
    for (size_t begin = 0; begin < group->slots.size(); ++begin) {
      size_t end = begin;
      while (end < group->slots.size() && begins(end)) {
        ++end;
      }
      if (end > begin) {
        const auto count = static_cast<int64_t>(end - begin);
        ops::fill(stream, {group->slots[begin]->amax, DType::f32, {count}}, 0.0F);
        begin = end;
      }
    }
  }
}

void ScalingState::update(Stream stream, uint64_t due, double* squared_norm, ScalingPass pass,
                          int chunk) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group* group = groups_[g].get();
    if (pass != ScalingPass::both && (pass != group->pass || chunk != group->chunk)) {
      continue;
    }
    ops::propagate_non_finite(stream, group->amax, squared_norm);
    if (by_blocks(group->format)) {
      ops::fill(stream, group->amax, 0.0F);
    }
    if ((due >> g & 1U) == 0) {
      continue;
    }
    const ops::DelayedScalingState state = {
        .slots = static_cast<int64_t>(group->slots.size()),
        .history_length = group->format.delayed.history_length,
        .amax = group->amax.as<float>(),
        .history = group->history.view().as<float>(),
        .cursor = group->cursor.view().as<int32_t>(),
        .scale = group->scale.view().as<float>(),
        .scale_inv = group->scale_inv.view().as<float>(),
        .format_max = group->format_max.view().as<float>(),
        .pow2 = group->format.scale_type == ScaleType::pow2,
        .per_step = group->format.delayed.unit == WindowUnit::step,
        .updates_left = group->updates_left.view().as<int32_t>()};
    ops::update_delayed_scaling(stream, state, group->format.delayed);
  }
}

std::vector<SlotReport> ScalingState::report() const {
  std::vector<SlotReport> reports;
  for (const ScalingSlot* const slot : of_all_stages()) {
    reports.push_back({slot, 0.0F, {}, {}});  // of other stages
  }
  std::vector<ops::QuantizeStatistics> statistics(slots_.size());
  std::vector<CastSample> samples(slots_.size());
  if (device_ == nullptr || slots_.empty()) {
    return reports;
  }
  device_->copy_to_host(statistics.data(), statistics_.data(), statistics_.bytes());
  device_->copy_to_host(samples.data(), samples_.data(), samples_.bytes());
  for (size_t i = 0; i < slots_.size(); ++i) {
    reports[slots_[i]->index] = {slots_[i].get(), 0.0F, statistics[i], samples[i]};
  }
  for (const auto& group : groups_) {
    const std::vector<float> scales = to_host_f32(*device_, group->scale);
    for (SlotReport& report : reports) {
      const float* first = group->scale.view().as<float>();
      if (report.slot->scale >= first && report.slot->scale < first + scales.size()) {
        report.scale = scales[static_cast<size_t>(report.slot->scale - first)];
      }
    }
  }
  return reports;
}

void ScalingState::restart() {
  for (const auto& group : groups_) {
    if (is_delayed(group->format)) {
      const std::vector<float> ones(group->slots.size(), 1.0F);
      copy_from_host(*device_, group->scale, ones.data());
      copy_from_host(*device_, group->scale_inv, ones.data());
      fill_zero(*device_, group->amax);
      fill_zero(*device_, group->history);
      fill_zero(*device_, group->cursor);
    }
    if (group->format.is_current_at_first()) {
      set_updates_left(*group, group->format.delayed.history_length);
    }
  }
}

void ScalingState::note_update(uint64_t due) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const bool updated = (due >> g & 1U) != 0;
    windows_moved_ = windows_moved_ || (updated && groups_[g]->format.is_current_at_first());
  }
}

void ScalingState::read_windows() {
  if (!windows_moved_) {
    return;
  }
  windows_moved_ = false;
  for (const auto& group : groups_) {
    if (group->format.is_current_at_first()) {
      std::vector<int32_t> left(group->slots.size());
      copy_to_host(*device_, left.data(), group->updates_left);
      for (size_t i = 0; i < left.size(); ++i) {
        group->slots[i]->scales_now = left[i] > 0;
      }
    }
  }
}

FirstWindows ScalingState::first_windows() const {
  size_t slots = 0;
  size_t in_first = 0;
  for (const auto& slot : slots_) {
    if (slot->format.is_current_at_first()) {
      ++slots;
      in_first += slot->scales_now ? 1 : 0;
    }
  }
  const bool all = in_first == slots;
  return in_first == 0 ? FirstWindows::none : all ? FirstWindows::all : FirstWindows::some;
}

void ScalingState::set_updates_left(Group& group, int32_t updates) {
  const std::vector<int32_t> left(group.slots.size(), updates);
  copy_from_host(*device_, group.updates_left, left.data());
  for (ScalingSlot* slot : group.slots) {
    slot->scales_now = updates > 0;
  }
}

void ScalingState::end_first_windows() {
  for (const auto& group : groups_) {
    if (group->format.is_current_at_first()) {
      set_updates_left(*group, 0);
    }
  }
}

/// Returns memory for the scales of the groups for which `holds`.
template <typename Condition>
ScalingState::StoredScales ScalingState::stored_scales_of(const Condition& holds) const {
  StoredScales stored;
  int64_t slots = 0;
  for (const auto& group : groups_) {
    if (holds(*group)) {
      stored.groups.push_back(group.get());
      slots += static_cast<int64_t>(group->slots.size());
    }
  }
  if (slots > 0) {
    stored.values = Tensor(*device_, DType::f32, {3, slots}, MemoryCategory::scaling_state);
  }
  return stored;
}

ScalingState::StoredScales ScalingState::make_stored_scales(ScalingPass pass) const {
  return stored_scales_of([&](const Group& group) { return group.pass == pass; });
}

/// Copies fp32 to fp32: the bits.
void ScalingState::copy_scales(Stream stream, const StoredScales& stored, bool back) {
  auto* next = stored.values.view().as<float>();
  for (const Group* group : stored.groups) {
    for (const View& values : {group->amax, group->scale.view(), group->scale_inv.view()}) {
      const View copy = {next, DType::f32, values.shape};
      ops::cast(stream, back ? copy : values, back ? values : copy);
      next += values.count();
    }
  }
}

void ScalingState::store_scales(Stream stream, StoredScales& stored) const {
  copy_scales(stream, stored, false);
  stored.scales_now.clear();
  for (const Group* group : stored.groups) {
    for (const ScalingSlot* slot : group->slots) {
      stored.scales_now.push_back(slot->scales_now);
    }
  }
}

void ScalingState::restore_scales(Stream stream, const StoredScales& stored) const {
  copy_scales(stream, stored, true);
  size_t next = 0;
  for (const Group* group : stored.groups) {
    for (ScalingSlot* slot : group->slots) {
      slot->scales_now = stored.scales_now[next++];
    }
  }
}

void ScalingState::begin_evaluation(Stream stream) {
  read_windows();
  if (first_windows() != FirstWindows::none) {
    store_scales(stream, evaluated_);
  }
}

void ScalingState::end_evaluation(Stream stream) const {
  if (first_windows() != FirstWindows::none) {
    restore_scales(stream, evaluated_);
  }
}

}  // namespace fp8train
