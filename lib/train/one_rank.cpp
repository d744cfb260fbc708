#include "train/one_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

#include "base/error.h"
#include "base/philox.h"
#include "comm/backends/rank_threads.h"
#include "engine/dry_run.h"
#include "numeric/bits.h"
#include "optim/registry.h"
#include "train/checkpoint/saved_state.h"
#include "train/rank_device.h"

namespace fp8train {
namespace {

constexpr int kSteps = 2;
constexpr double kTimeout = 300;  // seconds of an exchange
constexpr uint64_t kBatchPurpose = 0xBA7C;
constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

bool same_bits(const float& a, const float& b) {
  return bits_of(a) == bits_of(b);
}

/// Adds the elements of a rank's part from `first` on to the whole.
void add_elements(std::vector<float>& whole, const Parameter& parameter, int64_t first,
                  const std::vector<float>& part) {
  const int64_t used = parameter.used_rows * parameter.sharding.width();  // the rest is padding
  whole.resize(static_cast<size_t>(used), kNone);
  const auto end = first + static_cast<int64_t>(part.size());
  parameter.sharding.for_each_stretch([&](int64_t local, int64_t element, int64_t count) {
    const int64_t from = std::max(local, first);
    const int64_t to = std::min({local + count, end, local + used - element});
    for (int64_t i = from; i < to; ++i) {
      float& there = whole[static_cast<size_t>(element + i - local)];
      const float value = part[static_cast<size_t>(i - first)];
      there = same_bits(there, kNone) || same_bits(there, value) ? value : -kNone;
    }
  });
}

/// `step`: 0 before the first one.
void add_parts(Engine& engine, size_t step, TrainedModel& model) {
  const ParameterStore& store = engine.model().parameters();
  model.names = store.names();
  for (const auto& parameter : store.all()) {
    TrainedModel::OfParameter& whole = model.parameters[parameter->name];
    whole.values.resize(kSteps + 1);
    whole.gradients.resize(kSteps + 1);
    const auto& updated = parameter->updated;
    const bool has_all = store.shards() == nullptr;
    add_elements(
        whole.values[step], *parameter, has_all ? 0 : updated.first,
        values_on_host(engine.device(), has_all ? parameter->stored_value : updated.value));
    if (step > 0 && parameter->trained && updated.count() > 0) {
      add_elements(whole.gradients[step], *parameter, updated.first,
                   values_on_host(engine.device(), updated.gradient));
    }
  }
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * value;
  }
  return std::sqrt(sum);
}

std::vector<float> minus(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] -= b[i];
  }
  return a;
}

bool equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// The differences of one kind of tensor in one step.
class Comparison {
 public:
  void add(const std::string& name, double relative, double ratio, double allowed) {
    if (relative <= allowed) {
      return;
    }
    if (!first_) {
      first_ = FirstDifference{.parameter = name, .relative = relative, .ratio = ratio};
    }
    first_->last = name;
    ++first_->count;
  }
  /// Compares bits unless a difference is allowed.
  void add(const std::string& name, const std::vector<float>& one, const std::vector<float>& other,
           double allowed) {
    if (!equal(one, other)) {
      const double size = std::max(norm_of(one), 1e-30);
      const double distance = one.size() == other.size() ? norm_of(minus(other, one)) : kNone;
      add(name, distance / size, norm_of(other) / size, allowed > 0 ? allowed : -1.0);
    }
  }
  /// Compares what a step has added to values.
  void add_changes(const std::string& name, const std::vector<float>& one,
                   const std::vector<float>& other, double allowed) {
    const double ratio = norm_of(other) / std::max(norm_of(one), 1e-30);
    add(name, one.empty() || equal(one, other) ? 0 : std::abs(ratio - 1), ratio, allowed);
  }
  std::optional<FirstDifference> first(const char* tensor, int step) {
    if (first_) {
      first_->tensor = tensor;
      first_->step = step;
    }
    return first_;
  }

 private:
  std::optional<FirstDifference> first_;
};

}  // namespace

Batch random_batch(const EngineSettings& engine, int64_t data_ranks, uint64_t index) {
  const StepSettings& step = engine.step;
  Batch batch = {.rows = step.micro_batch_size, .columns = step.seq_length};
  const uint64_t key = philox_key(step.seed, kBatchPurpose, index);
  const auto vocabulary = static_cast<uint32_t>(engine.model.vocab_size);
  int64_t targets = 0;
  for (int64_t i = 0; i < step.micro_batch_tokens(); ++i) {
    const PhiloxBlock bits = philox(key, 0, static_cast<uint64_t>(i));
    const bool ignored = engine.counts_targets && i % 5 == 0;
    batch.tokens.push_back(static_cast<int32_t>(bits.word[0] % vocabulary));
    batch.targets.push_back(ignored ? kIgnoredTarget
                                    : static_cast<int32_t>(bits.word[1] % vocabulary));
    targets += ignored ? 0 : 1;
    if (engine.masks_documents) {
      const int64_t third = step.seq_length / 3;
      batch.document_starts.push_back(
          static_cast<int32_t>(i % step.seq_length < third ? 0 : third));
    }
  }
  if (engine.counts_targets) {
    batch.step_targets = targets * step.gradient_accumulation_steps * data_ranks;
  }
  return batch;
}

void train_part(const EngineSettings& engine_settings, Communicator* comm, std::mutex& mutex,
                TrainedModel& model) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, engine_settings, comm);
  engine.reserve(dry_run_step(engine_settings, *device,
                              comm == nullptr ? Topology() : comm->topology(),
                              comm == nullptr ? 0 : comm->rank())
                     .plan);
  engine.model().initialize(engine_settings.step.seed);
  engine.weights_changed();
  const Mesh& mesh = engine.mesh();
  const int64_t data_ranks = mesh.size(Axis::data);
  const auto add = [&](size_t step) {
    const std::lock_guard<std::mutex> lock(mutex);
    add_parts(engine, step, model);
  };
  add(0);
  uint64_t pass = 0;
  for (int step = 0; step < kSteps; ++step) {
    engine.step(
        [&] {
          const uint64_t first = pass++ * static_cast<uint64_t>(data_ranks);
          return random_batch(engine_settings, data_ranks,
                              first + static_cast<uint64_t>(mesh.index(Axis::data)));
        },
        step, engine_settings.optimizer.lr, true);
    const double loss = engine.step_loss().mean;
    add(static_cast<size_t>(step) + 1);
    if (mesh.leads()) {
      const std::lock_guard<std::mutex> lock(mutex);
      model.losses.push_back(loss);
      model.norms.push_back(engine.optimizer().control().gradient_norm);
    }
  }
}

TrainedModel train_in_threads(const SmallRun& run) {
  TrainedModel model;
  std::mutex mutex;
  if (run.ranks.size() == 1) {
    train_part(run.engine, nullptr, mutex, model);
    return model;
  }
  const std::vector<std::exception_ptr> errors = run_rank_threads(
      run.ranks,
      [&](Communicator& comm) {
        configure_threads(1);
        train_part(run.engine, &comm, mutex, model);
      },
      kTimeout);
  // Where one rank fails, the others miss it.
  std::exception_ptr of_exchange;
  for (const std::exception_ptr& error : errors) {
    try {
      if (error != nullptr) {
        std::rethrow_exception(error);
      }
    } catch (const CommError&) {
      of_exchange = error;
    }
  }
  if (of_exchange != nullptr) {
    std::rethrow_exception(of_exchange);
  }
  return model;
}

SmallRun with_whole_models(const SmallRun& run) {
  SmallRun whole = run;
  const int ranks = mesh_shape(run.engine.strategy.layout, run.ranks).data;
  whole.engine.strategy.layout = {.tensor_parts = run.engine.strategy.layout.tensor_parts};
  whole.ranks = Topology::blocks(ranks, ranks);
  return whole;
}

SmallRun with_one_rank(const SmallRun& run) {
  SmallRun one = with_whole_models(run);
  one.engine.step.gradient_accumulation_steps *= one.ranks.size();
  one.ranks = Topology();
  return one;
}

Nearness expected_nearness(const SmallRun& one, const SmallRun& other) {
  const ParallelLayout& layout = other.engine.strategy.layout;
  const bool same_batches = one.engine.step == other.engine.step;
  const bool ties = layout.pipeline > 1 && one.engine.model.tie_word_embeddings;
  const PrecisionPlan& plan = other.engine.plan;
  // Groups of a wire begin with a rank's part, and blocks of tokens with an expert's rows.
  const bool moves_blocks =
      plan.gradient_wire.block.is_group() ||
      (one.engine.model.moe.experts > 0 && plan.any_operand([](const TensorFormat& format) {
        return format.is_scaled() && format.block.columns > 0;
      }));
  if (same_batches && !ties && layout.context == 1 && layout.expert == 1 &&
      (layout.tensor == 1 || (layout.tensor_parts > 0 && !moves_blocks))) {
    return {};
  }
  // A sum in another order moves codes to their neighbours, and updates of small gradients, which
  // may be as large as others, to the other side of zero.
  constexpr double kCodes = 0.2, kHalves = 2e-2, kSingles = 2e-6, kFourBits = 0.6, kChange = 0.25;
  const bool four_bits =
      plan.any_operand([](const TensorFormat& format) { return format.dtype == DType::e2m1; });
  const auto codes = [](const TensorFormat& format) { return format.is_scaled(); };
  const auto halves = [](const TensorFormat& format) { return format.dtype != DType::f32; };
  const std::array formats = {parameter_formats(plan).gradient, plan.gradient_wire,
                              plain(plan.activation)};
  const double gradient = four_bits ? kFourBits
                          : has_scaled_gemms(plan) || std::ranges::any_of(formats, codes) ? kCodes
                          : std::ranges::any_of(formats, halves)                          ? kHalves
                                                                 : kSingles;
  // Tokens near a tie go to other experts.
  const double with_experts = one.engine.model.moe.experts > 0 ? 3.0 : 1.0;
  // Iterations that orthogonalize a matrix round to bf16.
  const bool rounds = optimizer_named(one.engine.optimizer.name).repeats_products;
  const double later = std::max(10 * gradient, rounds ? kHalves : 50 * kSingles);
  return {gradient * with_experts, kChange * with_experts, later * with_experts};
}

std::optional<FirstDifference> first_difference(const TrainedModel& one, const TrainedModel& other,
                                                const Nearness& allowed) {
  for (int step = 0; step <= kSteps; ++step) {
    const auto at = static_cast<size_t>(step);
    const double of_gradient = step > 1 ? allowed.later_gradient : allowed.gradient;
    Comparison gradients, values;
    for (const std::string& name : one.names) {
      const TrainedModel::OfParameter& a = one.parameters.at(name);
      const TrainedModel::OfParameter& b = other.parameters.at(name);
      gradients.add(name, a.gradients[at], b.gradients[at], of_gradient);
      if (step == 0 || allowed.change == 0) {
        values.add(name, a.values[at], b.values[at], 0);
      } else {
        values.add_changes(name, minus(a.values[at], a.values[at - 1]),
                           minus(b.values[at], b.values[at - 1]), allowed.change);
      }
    }
    for (auto& [comparison, tensor] :
         {std::pair(&gradients, "gradient"), std::pair(&values, "value")}) {
      if (auto found = comparison->first(tensor, step)) {
        return found;
      }
    }
  }
  for (int step = 1; step <= kSteps; ++step) {
    const auto at = static_cast<size_t>(step) - 1;
    Comparison numbers;
    const auto add = [&](const char* name, double a, double b, double least) {
      numbers.add(name, a == b ? 0 : std::abs(b / a - 1), b / a, std::max(allowed.gradient, least));
    };
    add("loss", one.losses[at], other.losses[at], 0);
    add("gradient norm", one.norms[at], other.norms[at], 1e-6);  // rounded in another order
    if (auto found = numbers.first("number", step)) {
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace fp8train
