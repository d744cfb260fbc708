// The state of delayed scales in a checkpoint, by the names of slots.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "precision/scaling_rules.h"
#include "precision/scaling_state.h"

namespace fp8train {
namespace {

/// Whether an update can have left the value in this part of the state. A position beyond the
/// history would be read outside of it.
bool is_possible(std::string_view part, const DelayedScaling& rule, float value) {
  const bool is_count = part == "cursor" || part == "updates_left";
  const auto history = static_cast<float>(rule.history_length);
  const float most = part == "cursor" ? history - 1.0F
                     : is_count       ? history
                                      : std::numeric_limits<float>::max();
  return value >= 0.0F && value <= most && (part != "scale" || value > 0.0F) &&
         (!is_count || value == std::floor(value));
}

/// Returns column `column` of a matrix with `columns` of them.
std::vector<float> column_of(const std::vector<float>& values, size_t column, size_t columns) {
  std::vector<float> found;
  for (size_t i = column; i < values.size(); i += columns) {
    found.push_back(values[i]);
  }
  return found;
}

/// Where earlier versions saved a slot: a tensor had the same part of all slots with one rule.
struct EarlierColumn {
  size_t group = 0, column = 0, columns = 0;
};

EarlierColumn earlier_column(const std::vector<const ScalingSlot*>& slots,
                             const ScalingSlot& slot) {
  EarlierColumn found;
  std::vector<const ScalingSlot*> before;  // the first slot of each other rule
  const auto position = [](const ScalingSlot& of) {
    return std::pair(of.begins_at_zero, of.index);
  };
  for (const ScalingSlot* const other : slots) {
    if (same_rule(other->format, slot.format)) {
      found.column += position(*other) < position(slot) ? 1 : 0;
      ++found.columns;
    } else if (found.columns == 0 && std::ranges::none_of(before, [&](const ScalingSlot* first) {
                 return same_rule(first->format, other->format);
               })) {
      before.push_back(other);
    }
  }
  found.group = before.size();
  return found;
}

}  // namespace

std::vector<std::pair<const char*, View>> ScalingState::saved_parts(const Group& group) {
  if (!is_delayed(group.format)) {
    return {};  // current scaling keeps nothing from step to step
  }
  std::vector<std::pair<const char*, View>> parts = {{"amax", group.amax},
                                                     {"scale", group.scale},
                                                     {"scale_inv", group.scale_inv},
                                                     {"amax_history", group.history},
                                                     {"cursor", group.cursor}};
  if (group.format.is_current_at_first()) {
    parts.emplace_back("updates_left", group.updates_left);
  }
  return parts;
}

std::vector<ScalingState::SavedTensor> ScalingState::save() const {
  std::vector<SavedTensor> saved;
  for (const auto& group : groups_) {
    for (const auto& [part, view] : saved_parts(*group)) {
      std::vector<float> values;
      if (view.dtype == DType::f32) {
        values = to_host_f32(*device_, view);
      } else {
        std::vector<int32_t> integers(static_cast<size_t>(view.count()));
        copy_to_host(*device_, integers.data(), view);
        values.assign(integers.begin(), integers.end());
      }
      const size_t slots = group->slots.size();
      for (size_t i = 0; i < slots; ++i) {
        SavedTensor& tensor = saved.emplace_back();
        tensor.name =
            fmt::format("scaling.{}.{}.{}", group->slots[i]->layer, group->slots[i]->role, part);
        tensor.of_rank = is_of_rank(group->format);
        tensor.values = column_of(values, i, slots);
        tensor.shape = {static_cast<int64_t>(tensor.values.size())};
      }
    }
  }
  return saved;
}

std::string ScalingState::impossible_value(const std::vector<SavedTensor>& tensors) const {
  size_t next = 0;
  for (const auto& group : groups_) {
    for (const auto& [part, view] : saved_parts(*group)) {
      for (size_t slot = 0; slot < group->slots.size(); ++slot) {
        const SavedTensor& tensor = tensors.at(next++);
        for (size_t i = 0; i < tensor.values.size(); ++i) {
          if (!is_possible(part, group->format.delayed, tensor.values[i])) {
            return fmt::format("{}[{}] is {}, which no run leaves there", tensor.name, i,
                               tensor.values[i]);
          }
        }
      }
    }
  }
  return "";
}

void ScalingState::load(const std::vector<SavedTensor>& tensors) {
  std::map<std::string, const SavedTensor*> by_name;
  for (const SavedTensor& tensor : tensors) {
    by_name.emplace(tensor.name, &tensor);
  }
  const auto find = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = by_name.find(name);
    return found != by_name.end() && found->second->shape == shape ? found->second : nullptr;
  };
  std::vector<SavedTensor> wanted = save();
  const std::vector<const ScalingSlot*> all_slots = of_all_stages();
  size_t next = 0;
  for (const auto& group : groups_) {
    for (const auto& [part, view] : saved_parts(*group)) {
      for (const ScalingSlot* slot : group->slots) {
        SavedTensor& tensor = wanted[next++];
        const EarlierColumn earlier = earlier_column(all_slots, *slot);
        std::vector<int64_t> shape = {static_cast<int64_t>(earlier.columns)};
        if (view.shape.rank() == 2) {
          shape.insert(shape.begin(), tensor.shape.front());
        }
        if (const SavedTensor* const one = find(tensor.name, tensor.shape)) {
          tensor.values = one->values;
        } else if (const SavedTensor* const all =
                       find(fmt::format("scaling.{}.{}", earlier.group, part), shape)) {
          tensor.values = column_of(all->values, earlier.column, earlier.columns);
        } else {
          throw OtherScales(
              "the checkpoint has no " + tensor.name +
              " of the shape that this run's precision plan and model ask for; resume "
              "with the plan it was saved with, or start from its weights (model.from)");
        }
      }
    }
  }
  if (const std::string bad = impossible_value(wanted); !bad.empty()) {
    throw CheckpointError(bad);
  }
  next = 0;
  for (const auto& group : groups_) {
    for (const auto& [part, view] : saved_parts(*group)) {
      const size_t slots = group->slots.size();
      std::vector<float> values(static_cast<size_t>(view.count()));
      for (size_t slot = 0; slot < slots; ++slot) {
        const std::vector<float>& column = wanted[next++].values;
        for (size_t i = 0; i < column.size(); ++i) {
          values[i * slots + slot] = column[i];
        }
      }
      if (view.dtype == DType::f32) {
        copy_from_host(*device_, view, values.data());
      } else {
        const std::vector<int32_t> integers(values.begin(), values.end());
        copy_from_host(*device_, view, integers.data());
      }
    }
  }
  windows_moved_ = true;
}

}  // namespace fp8train
