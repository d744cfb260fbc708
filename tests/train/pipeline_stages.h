#pragma once
// Trainings of models that are divided into pipeline stages, each on a thread, and how they differ
// from those of one rank.

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/in_order.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/ready_engine.h"
#include "support/small_gpt2.h"

namespace fp8train::test::stages {

inline constexpr int64_t kBlocks = 4;
inline constexpr int64_t kSteps = 3;

/// The results of a training. The stages of a pipeline add their parts.
struct Trained {
  std::vector<double> losses, norms;
  double evaluated = 0;
  std::map<std::string, std::vector<float>> values;  // and moments
  std::map<std::string, float> scales;
  bool as_planned = true;
  bool agree = true;  // on what several ranks have

  void add(const Trained& stage) {
    losses = stage.losses;
    norms = stage.norms;
    evaluated = stage.evaluated;
    for (const auto& [name, of_stage] : stage.values) {
      const auto [found, is_new] = values.emplace(name, of_stage);
      agree = agree && (is_new || same_bits(found->second, of_stage));
    }
    scales.insert(stage.scales.begin(), stage.scales.end());
    as_planned = as_planned && stage.as_planned;
  }
};

inline EngineSettings four_blocks(EngineSettings settings, int64_t micro_batches) {
  settings.model.num_hidden_layers = kBlocks;
  settings.model.tie_word_embeddings = false;
  settings.step.gradient_accumulation_steps = micro_batches;
  settings.strategy.bucket_bytes = 4096;
  return settings;
}

/// A kind of schedule and the chunks of each stage.
struct Order {
  ScheduleKind kind;
  int64_t chunks;
};

inline constexpr std::array<Order, 3> kOrders = {{{ScheduleKind::one_forward_one_backward, 1},
                                                  {ScheduleKind::zero_bubble, 1},
                                                  {ScheduleKind::interleaved, 2}}};

/// Lets stages run in an order, with as many micro-batches as it takes at least.
inline EngineSettings in_order(EngineSettings settings, const Order& order, int64_t stages) {
  settings.strategy.layout.schedule = order.kind;
  settings.strategy.layout.virtual_stages = order.chunks;
  settings.model.num_hidden_layers = std::max(kBlocks, stages * order.chunks);
  int64_t& micro_batches = settings.step.gradient_accumulation_steps;
  if (order.kind == ScheduleKind::interleaved) {
    micro_batches = (micro_batches + stages - 1) / stages * stages;
  }
  return settings;
}

/// The second half of each sequence is another document.
inline Batch batch_of(const EngineSettings& settings, uint64_t index) {
  Batch batch = random_batch(index);
  if (settings.counts_targets) {
    batch.targets[index % batch.targets.size()] = kIgnoredTarget;
    batch.step_targets =
        static_cast<int64_t>(batch.targets.size() - 1) * settings.step.gradient_accumulation_steps;
  }
  if (settings.masks_documents) {
    for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
      const int64_t half = batch.columns / 2;
      batch.document_starts.push_back(static_cast<int32_t>(i % batch.columns / half * half));
    }
  }
  return batch;
}

inline void read(Engine& engine, Device& device, Trained& trained) {
  const int part = engine.mesh().index(Axis::data);  // of moments in ZeRO, and of own scales
  std::vector<std::string> names;
  for (const auto& parameter : engine.model().parameters().all()) {
    names.push_back(parameter->name);
  }
  const std::vector<std::vector<float>> values = values_by_parameter(engine);
  for (size_t i = 0; i < names.size(); ++i) {
    trained.values[names[i]] = values[i];
    for (const OptimizerState* state : engine.optimizer().states()) {
      const Encoded moment = state->of(i);
      if (!moment.empty() && moment.format == TensorFormat{}) {
        trained.values[fmt::format("{}.{}@{}", state->name(), names[i], part)] =
            to_host_f32(device, moment.codes);
      }
    }
  }
  for (const SlotReport& report : engine.model().scaling().report()) {
    if (const ScalingSlot& slot = *report.slot; slot.scale != nullptr) {
      trained.scales[fmt::format("{}.{}@{}", slot.layer, slot.role, part)] = report.scale;
    }
  }
}

inline Trained train(const EngineSettings& settings, Communicator* comm) {
  ReadyEngine ready(settings, comm);
  const auto& device = ready.device;
  Engine& engine = ready.engine;
  const uint64_t allocations = device->ledger().allocations();
  const auto replicas = static_cast<uint64_t>(engine.mesh().size(Axis::data));
  uint64_t next = static_cast<uint64_t>(engine.mesh().index(Axis::data));
  const auto batch = [&] { return batch_of(settings, std::exchange(next, next + replicas)); };
  Trained trained;
  engine.calibrate(batch());
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.step(batch, step, 1e-3, step % 2 == 0);
    trained.losses.push_back(engine.step_loss().mean);
    trained.norms.push_back(engine.optimizer().control().gradient_norm);
  }
  engine.begin_evaluation();
  for (int i = 0; i < 3; ++i) {
    engine.evaluate(batch());
  }
  trained.evaluated = engine.evaluation_loss().mean;
  trained.as_planned = device->ledger().allocations() == allocations && ready.is_as_planned();
  read(engine, *device, trained);
  return trained;
}

/// Runs as many ranks as the layout and `replicas` ask for.
inline Trained train_stages(EngineSettings settings, int64_t stages, int replicas = 1,
                            bool in_order = false) {
  settings.strategy.layout.pipeline = stages;
  const int ranks = static_cast<int>(stages) * replicas;
  Trained all;
  std::mutex mutex;
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        InOrder ordered(comm);
        const Trained stage = train(settings, in_order ? &ordered : &comm);
        const std::lock_guard<std::mutex> lock(mutex);
        all.add(stage);
      });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.empty());
  }
  return all;
}

/// Models on whole ranks, each trained once: the order of stages does not change what they compute.
class WholeRanks {
 public:
  /// 0: one rank without a communicator.
  explicit WholeRanks(int replicas = 0) : replicas_(replicas) {}

  const Trained& train_as(const EngineSettings& settings) {
    const auto [found, is_new] = trained_.try_emplace(
        {settings.model.num_hidden_layers, settings.step.gradient_accumulation_steps});
    if (is_new) {
      found->second =
          replicas_ == 0 ? train(settings, nullptr) : train_stages(settings, 1, replicas_);
    }
    return found->second;
  }

 private:
  int replicas_;
  std::map<std::pair<int64_t, int64_t>, Trained> trained_;  // by blocks and micro-batches
};

inline void check_same(const Trained& trained, const Trained& wanted) {
  CHECK(trained.losses == wanted.losses);
  CHECK(trained.norms == wanted.norms);
  CHECK(trained.evaluated == wanted.evaluated);
  CHECK(trained.as_planned);
  CHECK(trained.agree);
  REQUIRE(trained.values.size() == wanted.values.size());
  for (const auto& [name, values] : wanted.values) {
    CAPTURE(name);
    REQUIRE(trained.values.contains(name));
    CHECK(same_bits(trained.values.at(name), values));
  }
  REQUIRE(trained.scales.size() == wanted.scales.size());
  for (const auto& [name, scale] : wanted.scales) {
    CAPTURE(name, scale);
    CHECK(trained.scales.at(name) == scale);
  }
}

}  // namespace fp8train::test::stages
