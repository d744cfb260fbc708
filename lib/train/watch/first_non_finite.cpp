#include "train/watch/first_non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"
#include "train/checkpoint/saved_state.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

enum class Role : uint8_t { weight, activation, gradient };

/// A value that is not finite, in the form in which ranks send it to each other.
struct SentFinding {
  int32_t found = 0;
  Role role = Role::weight;
  int64_t order = 0;  ///< of computation, among those of its role
  int64_t element = 0;
  float value = 0;
  int32_t is_sum = 0;  ///< the same on all ranks
};
struct Finding : SentFinding {
  std::string name;
};

const char* name_of(Role role) {
  constexpr const char* kNames[] = {"weight", "activation", "gradient"};
  return kNames[static_cast<size_t>(role)];
}

std::optional<Finding> look(const std::vector<float>& values, int64_t first) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) {
    return std::nullopt;
  }
  Finding finding;
  finding.found = 1;
  finding.element = first + (bad - values.begin());
  finding.value = *bad;
  return finding;
}

/// Returns the values of a view of fp32, bf16 or fp16.
std::vector<float> values_on_host(Device& device, const ConstView& view) {
  if (view.dtype == DType::f32) {
    return to_host_f32(device, view);
  }
  const Tensor fp32(device, DType::f32, view.shape, MemoryCategory::workspace);
  ops::cast(device.stream(), view, fp32);
  return to_host_f32(device, fp32);
}

/// Memory for fp32 values was not planned: of a tensor for which there is none nothing is known.
/// Every rank continues, since what follows may be collective.
template <typename Tensor>
std::optional<Finding> look(Device& device, const Tensor& tensor, int64_t first) {
  try {
    return look(values_on_host(device, tensor), first);
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

/// The part of one parameter that this rank updates: its value, or the gradient of it.
std::optional<Finding> look(Device& device, const Parameter& parameter, Role role) {
  const Parameter::Updated& own = parameter.updated;
  const Encoded& tensor = role == Role::weight ? own.value : own.gradient;
  if (tensor.codes.empty() || tensor.count() == 0) {
    return std::nullopt;
  }
  std::optional<Finding> finding = look(device, tensor, own.first);
  if (finding) {
    finding->role = role;
    finding->name = parameter.name;
  }
  return finding;
}

/// Keeps the first one that a forward pass makes.
class FirstActivation : public ActivationWatch {
 public:
  FirstActivation(Device& device, const ModelPart& part) : device_(&device), part_(&part) {}
  void begin_batch() { ++batches_; }
  void made(size_t unit, const View& output) override {
    if (finding_) {
      return;
    }
    const int64_t block = unit == 0 ? -1 : part_->block_at(static_cast<int64_t>(unit) - 1);
    finding_ = look(*device_, ConstView(output), 0);
    if (finding_) {
      finding_->role = Role::activation;
      constexpr int64_t kMaxBlocks = int64_t{1} << 32;
      finding_->order = batches_ * kMaxBlocks + block;
      finding_->name =
          unit == 0 ? "embedding, its output" : fmt::format("layers.{}, its output", block);
    }
  }
  const std::optional<Finding>& finding() const { return finding_; }

 private:
  Device* device_;
  const ModelPart* part_;
  int64_t batches_ = 0;
  std::optional<Finding> finding_;
};

std::optional<Finding> first_weight(Engine& engine) {
  for (const auto& parameter : engine.model().parameters().all()) {
    if (std::optional<Finding> finding = look(engine.device(), *parameter, Role::weight)) {
      finding->order = static_cast<int64_t>(parameter->sharding.index);
      return finding;
    }
  }
  return std::nullopt;
}

/// A gradient that is not finite makes those of all layers before it so.
std::optional<Finding> first_gradient(Engine& engine) {
  const ParameterStore& store = engine.model().parameters();
  const auto& parameters = store.all();
  for (size_t i = parameters.size(); i-- > 0;) {
    if (std::optional<Finding> finding = look(engine.device(), *parameters[i], Role::gradient)) {
      finding->order = -static_cast<int64_t>(parameters[i]->sharding.index);
      const bool all_have_it = store.shards() == nullptr && !parameters[i]->of_experts();
      finding->is_sum = engine.mesh().world_size() > 1 && all_have_it ? 1 : 0;
      return finding;
    }
  }
  return std::nullopt;
}

/// The largest magnitudes that casts have noted, where they are this rank's own. Roles of weights
/// begin with w and those of gradients with d; what dy says comes too late for the layer that it
/// arose in, but names the product.
std::optional<Finding> first_cast(Engine& engine, Role role) {
  const ScalingState& scaling = engine.model().scaling();
  if (scaling.empty() || (engine.mesh().world_size() > 1 && scaling.keeps_state())) {
    return std::nullopt;
  }
  const std::vector<float> amax = to_host_f32(engine.device(), scaling.amax());
  const auto* base = scaling.amax().as<float>();
  std::optional<Finding> first;
  for (const auto& slot : scaling.slots()) {
    const bool is_gradient = slot->role.starts_with('d');
    if (is_gradient != (role == Role::gradient) || slot->role.starts_with('w')) {
      continue;
    }
    const float value = amax[static_cast<size_t>(slot->amax - base)];
    const auto index = static_cast<int64_t>(slot->index);
    const int64_t order = role == Role::gradient ? -index : index;
    if (!std::isfinite(value) && (!first || order < first->order)) {
      first = Finding{{1, role, order, -1, value}, slot->layer + "." + slot->role};
    }
  }
  return first;
}

Finding first_of_rank(Engine& engine, const std::function<Batch()>& next) {
  // Before the pass forward, which casts activations anew.
  const std::optional<Finding> cast = first_cast(engine, Role::activation);
  const std::optional<Finding> weight = first_weight(engine);
  FirstActivation activation(engine.device(), engine.model().part());
  // Collective in some layouts: whatever has been found.
  for (int64_t i = 0; i < engine.settings().step.gradient_accumulation_steps; ++i) {
    activation.begin_batch();
    engine.watch_forward(next(), activation);
  }
  for (const std::optional<Finding>& finding :
       {weight, activation.finding(), cast, first_gradient(engine),
        first_cast(engine, Role::gradient)}) {
    if (finding) {
      return *finding;
    }
  }
  return {};
}

}  // namespace

std::string first_non_finite(Engine& engine, Communicator& comm,
                             const std::function<Batch()>& next) {
  const Finding own = first_of_rank(engine, next);
  const std::vector<SentFinding> all = comm.all_gather_values<SentFinding>(own);
  const SentFinding* first = nullptr;
  for (const SentFinding& finding : all) {
    const bool earlier = first == nullptr || finding.role < first->role ||
                         (finding.role == first->role && finding.order < first->order);
    if (finding.found != 0 && earlier) {
      first = &finding;
    }
  }
  if (first == nullptr) {
    return "";
  }
  const auto rank = static_cast<int>(first - all.data());
  const std::string text = fmt::format(
      "{}{} {}", all.size() > 1 && first->is_sum == 0 ? fmt::format("rank {}: ", rank) : "",
      name_of(first->role), text_of_rank(comm, own.name, rank));
  return first->element < 0
             ? fmt::format("{}, whose largest magnitude is {}", text, first->value)
             : fmt::format("{}, element {} is {}", text, first->element, first->value);
}

}  // namespace fp8train
