#pragma once
// Engines of small models under any layout, each rank on a thread: the whole tensors that a few
// steps leave, and how they differ from those of another layout.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "support/leaves_out.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/ready_engine.h"
#include "support/small_gpt2.h"

namespace fp8train::test {

/// Values by the name of a parameter, of the whole.
using Wholes = std::map<std::string, std::vector<float>>;

struct Results {
  Wholes values, gradients;
  std::vector<double> losses, norms;
  std::vector<double> last_losses;  ///< as the last rank has them
  ExpertLoads loads;                ///< of the last step, of a model with experts
  bool as_planned = true;           ///< the memory
  size_t amax_bytes = 0;            ///< of all slots
};

/// Adds this rank's part of a tensor to the whole.
inline void add_part(Wholes& wholes, const Parameter& parameter, const std::vector<float>& part) {
  std::vector<float>& whole = wholes[parameter.name];
  const int64_t used = parameter.used_rows * parameter.sharding.width();  // the rest is padding
  whole.resize(static_cast<size_t>(used));
  parameter.sharding.for_each_stretch([&](int64_t local, int64_t element, int64_t count) {
    std::copy_n(part.begin() + local, std::clamp(used - element, int64_t{0}, count),
                whole.begin() + std::min(element, used));
  });
}

/// Returns where the document of a position begins: the first has seven tokens, and each other one
/// twice as many as the one before.
inline int32_t document_start(int64_t position) {
  int32_t start = 0;
  for (int32_t count = 7; position >= start + count; count *= 2) {
    start += count;
  }
  return start;
}

/// With documents, where they are masked, and without some targets, where these are counted.
/// Documents of batches after each other are others.
inline Batch batch_of(const EngineSettings& settings, uint64_t index, int64_t data_ranks = 1) {
  Batch batch = random_batch(index, settings.step.micro_batch_size, settings.step.seq_length);
  for (int64_t i = 0; settings.masks_documents && i < batch.rows * batch.columns; ++i) {
    const auto shift = static_cast<int32_t>(index % 3 * 2);
    batch.document_starts.push_back(std::max(0, document_start(i % batch.columns + shift) - shift));
  }
  for (size_t i = 0; settings.counts_targets && i < batch.targets.size(); ++i) {
    if (i % 5 < 2) {
      batch.targets[i] = kIgnoredTarget;
    } else {
      batch.step_targets += settings.step.gradient_accumulation_steps * data_ranks;
    }
  }
  return batch;
}

inline void train(const EngineSettings& settings, Communicator* comm, int64_t steps,
                  std::mutex& mutex, Results& results) {
  ReadyEngine ready(settings, comm);
  const auto& device = ready.device;
  Engine& engine = ready.engine;
  const Mesh& mesh = engine.mesh();
  auto* const leaves_out = dynamic_cast<LeavesOut*>(comm);
  if (leaves_out != nullptr) {
    leaves_out->begin();
  }
  std::vector<double> losses, norms;
  uint64_t pass = 0;
  for (int64_t step = 0; step < steps; ++step) {
    engine.step(
        [&] {
          return batch_of(settings,
                          pass++ * static_cast<uint64_t>(mesh.size(Axis::data)) +
                              static_cast<uint64_t>(mesh.index(Axis::data)),
                          mesh.size(Axis::data));
        },
        step, 1e-3, true);
    losses.push_back(engine.step_loss().mean);
    norms.push_back(engine.optimizer().control().gradient_norm);
  }
  ExpertLoads loads;
  if (settings.model.moe.experts > 0 && leaves_out == nullptr) {
    loads = engine.expert_loads();
  }
  const std::vector<std::vector<float>> values = values_by_parameter(engine);
  const std::lock_guard lock(mutex);
  results.as_planned = results.as_planned && ready.is_as_planned();
  results.amax_bytes = engine.model().scaling().amax().bytes();
  const Parameters& parameters = engine.model().parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    add_part(results.values, parameter, values[i]);
    if (!parameter.gradient.empty() && engine.model().parameters().shards() == nullptr) {
      std::vector<float> gradient(static_cast<size_t>(parameter.gradient.count()));
      copy_to_host(*device, gradient.data(), parameter.gradient);
      add_part(results.gradients, parameter, gradient);
    }
  }
  if (mesh.world_rank() + 1 == mesh.world_size()) {
    results.last_losses = losses;
  }
  if (mesh.leads()) {
    results.losses = losses;
    results.norms = norms;
    results.loads = loads;
  }
}

inline Results run(const EngineSettings& settings, int ranks, int64_t steps = 3) {
  Results results;
  std::mutex mutex;
  if (ranks == 1) {
    train(settings, nullptr, steps, mutex, results);
    return results;
  }
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, ranks),
                [&](Communicator& comm) { train(settings, &comm, steps, mutex, results); });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.empty());
  }
  return results;
}

inline double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * value;
  }
  return std::sqrt(sum);
}

/// Names the first tensors that differ, with the relative difference and the ratio of their norms:
/// 2, 1/2 or the number of ranks tell which sum is missing or made twice.
inline std::string difference(const Wholes& expected, const Wholes& actual, double tolerance) {
  std::string text;
  for (const auto& [name, values] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end() || found->second.size() != values.size()) {
      text += name + " is missing or has another size\n";
      continue;
    }
    if (tolerance == 0 && same_bits(values, found->second)) {
      continue;
    }
    std::vector<float> delta(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      delta[i] = found->second[i] - values[i];
    }
    const double relative = norm_of(delta) / std::max(norm_of(values), 1e-30);
    if (tolerance == 0 || !(relative <= tolerance)) {
      text += name + ": relative difference " + std::to_string(relative) + ", ratio of norms " +
              std::to_string(norm_of(found->second) / norm_of(values)) + "\n";
    }
  }
  return text;
}

inline void check_equal(const Results& expected, const Results& actual) {
  REQUIRE(actual.losses.size() == expected.losses.size());
  CHECK(difference(expected.gradients, actual.gradients, 0) == "");
  CHECK(difference(expected.values, actual.values, 0) == "");
  CHECK(actual.losses == expected.losses);
  for (size_t step = 0; step < expected.norms.size(); ++step) {
    CHECK(actual.norms[step] == Approx(expected.norms[step]).epsilon(1e-6));
  }
}

/// Returns the exchanges of two ranks, in the first two of three steps, without which all results
/// stay the same: "5: all_to_all of 64 bytes". `ignores_amax`: without those of all slots' amax.
inline std::vector<std::string> exchanges_not_needed(const EngineSettings& settings,
                                                     bool ignores_amax) {
  int64_t calls = 0;
  std::string name;
  bool alike = false;
  const auto run_without = [&](int64_t left_out) {
    Results results;
    std::mutex mutex;
    const std::vector<std::string> errors =
        run_ranks(Topology::blocks(2, 2), [&](Communicator& comm) {
          LeavesOut some(comm, left_out);
          train(settings, &some, 3, mutex, results);
          const std::lock_guard lock(mutex);
          calls = some.calls();
          name = some.left_out();
          alike = some.alike();
        });
    REQUIRE(errors == std::vector<std::string>(errors.size()));
    return results;
  };
  const Results all = run_without(-1);
  REQUIRE(calls > 10);
  const std::string of_amax =
      ignores_amax ? "all_gather of " + std::to_string(all.amax_bytes) + " bytes" : "";
  std::vector<std::string> not_needed;
  for (int64_t left_out = 0; left_out < calls * 2 / 3; ++left_out) {
    const Results some = run_without(left_out);
    if (difference(all.gradients, some.gradients, 0).empty() &&
        difference(all.values, some.values, 0).empty() && some.losses == all.losses &&
        some.norms == all.norms && some.last_losses == all.last_losses && name != of_amax &&
        !alike) {
      not_needed.push_back(std::to_string(left_out) + ": " + name);
    }
  }
  return not_needed;
}

/// The model with eight heads, and with a vocabulary that ranks do not divide.
inline EngineSettings with_eight_heads(EngineSettings settings, int64_t key_heads, int64_t width) {
  settings.model.num_attention_heads = 8;
  settings.model.num_key_value_heads = key_heads;
  settings.model.head_dim = 32;
  settings.model.hidden_size = width;
  settings.model.vocab_size = 1000;
  settings.model.intermediate_size = 512;
  return settings;
}

inline EngineSettings llama(const std::string& plan) {
  return with_eight_heads(small_llama(plan), 4, 128);
}

/// The same of GPT-2, with biases, learned positions and a tied head.
inline EngineSettings gpt2_with_heads(const std::string& plan) {
  return with_eight_heads(small_gpt2(plan), 8, 256);
}

}  // namespace fp8train::test
