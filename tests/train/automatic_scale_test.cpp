// The controller of automatic scales (fp8-lm) on several ranks: all have the same factors, which
// follow from what has saturated in the sums, wherever these were made.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/dry_run.h"
#include "engine/engine.h"
#include "numeric/convert.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "tensor/tensor.h"

using namespace fp8train;

namespace {

constexpr float kGrowth = 1.00069339F;  // 2^(1/1000)

using Factors = std::vector<float>;

/// Of each parameter that has a controller.
Factors factors_of(Engine& engine) {
  Factors factors;
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->automatic != nullptr) {
      check(parameter->automatic->at_maximum == 0, "counters are 0 between steps");
      factors.push_back(parameter->automatic->factor);
    }
  }
  return factors;
}

/// On each of the ranks of one node, with its own engine on the cpu.
void on_ranks(int ranks, int stage, const std::function<void(Engine&, Communicator&)>& body) {
  EngineSettings settings = test::small_llama("fp8-lm");
  settings.strategy.bucket_bytes = 4096;
  settings.strategy.zero_stage = stage;
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, settings, &comm);
        engine.reserve(dry_run_step(settings, DeviceTraits{}, comm.topology(), comm.rank()).plan);
        engine.model().initialize(3);
        engine.weights_changed();
        body(engine, comm);
      });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(ranks)));
}

void step(Engine& engine, int64_t index, uint64_t batch) {
  engine.step([&] { return test::random_batch(batch); }, index, 1e-3, false);
}

/// The factors of each rank after each step. `alike`: ranks have the same batches.
std::vector<std::vector<Factors>> train(int ranks, int stage, int64_t steps, bool alike) {
  std::vector<std::vector<Factors>> factors(static_cast<size_t>(ranks));
  on_ranks(ranks, stage, [&](Engine& engine, Communicator& comm) {
    const auto rank = static_cast<uint64_t>(comm.rank());
    for (int64_t i = 0; i < steps; ++i) {
      step(engine, i, alike ? 7 + i : 100 * rank + i);
      factors[rank].push_back(factors_of(engine));
    }
  });
  return factors;
}

}  // namespace

TEST_CASE("sums that saturate halve the factors on all ranks, in each stage") {
  // Four equal contributions under 1 / sqrt(4): twice the range, whatever the tensor is. Weights
  // are cut, so that most ranks have none of what saturates.
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    for (const std::vector<Factors>& rank : train(4, stage, 1, true)) {
      REQUIRE(rank[0].size() == 8);
      CHECK(rank[0] == Factors(8, 0.5F));
    }
  }
}

TEST_CASE("factors follow from the codes of the sums") {
  // Three equal contributions under 1/2: some tensors saturate, others do not.
  std::vector<Factors> found(3);
  std::vector<Factors> expected(3);
  on_ranks(3, 0, [&](Engine& engine, Communicator& comm) {
    step(engine, 0, 1);
    const auto rank = static_cast<size_t>(comm.rank());
    found[rank] = factors_of(engine);
    for (const auto& parameter : engine.model().parameters().all()) {
      if (parameter->automatic != nullptr) {
        const View codes = parameter->stored_gradient.codes;  // of the whole sum, on each rank
        int64_t largest = 0;  // two codes of fewer than 100000 are more than 1e-5 of them
        for (int64_t i = 0; i < codes.count(); ++i) {
          largest += std::abs(decode(codes.as<e4m3>()[i])) == 448.0F ? 1 : 0;
        }
        expected[rank].push_back(largest > 1 ? 0.5F : kGrowth);
      }
    }
  });
  CHECK(expected[0].size() == 8);
  CHECK(std::count(expected[0].begin(), expected[0].end(), 0.5F) % 8 != 0);
  for (size_t rank = 0; rank < 3; ++rank) {
    CHECK(found[rank] == expected[rank]);  // exact
  }
}

TEST_CASE("ranks and stages have the same factors, step by step") {
  for (const int ranks : {2, 3}) {
    const std::vector<std::vector<Factors>> first = train(ranks, 1, 5, false);
    CHECK(first[0].back() != Factors(8, 1.0F));
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks, stage);
      const std::vector<std::vector<Factors>> found = train(ranks, stage, 5, false);
      for (const std::vector<Factors>& rank : found) {
        CHECK(rank == found[0]);
      }
      // In stage 0 what is read of a sum is rounded once more, so that later steps differ.
      CHECK(found[0][0] == first[0][0]);
      if (stage > 0) {
        CHECK(found[0] == first[0]);
      }
    }
  }
}

TEST_CASE("a step that is skipped changes no factor") {
  for (const int stage : {0, 2}) {
    CAPTURE(stage);
    std::vector<Factors> before(2);
    std::vector<Factors> after(2);
    std::vector<int64_t> skipped(2);
    on_ranks(2, stage, [&](Engine& engine, Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      step(engine, 0, rank + 1);
      before[rank] = factors_of(engine);
      for (const auto& parameter : engine.model().parameters().all()) {
        if (parameter->name == "layers.1.mlp_norm.weight") {
          const std::vector<float> values(static_cast<size_t>(parameter->shape.count()), INFINITY);
          set_value(engine.device(), *parameter, values.data());
        }
      }
      engine.weights_changed();
      step(engine, 1, rank + 3);
      after[rank] = factors_of(engine);
      skipped[rank] = engine.optimizer().control().skipped_steps;
    });
    CHECK(skipped == std::vector<int64_t>{1, 1});
    CHECK(before[0] != Factors(8, 1.0F));
    CHECK(after == before);
  }
}

TEST_CASE("the factor scales what crosses the wire, and not what a rank keeps of it") {
  // After one step with factors of their own all gradients are the sums of the same values, in
  // codes that are finer or coarser by powers of two.
  const auto scales = [](float factor) {
    std::vector<float> found;
    on_ranks(2, 0, [&](Engine& engine, Communicator& comm) {
      for (const auto& parameter : engine.model().parameters().all()) {
        if (parameter->automatic != nullptr) {
          parameter->automatic->factor = factor;
        }
      }
      step(engine, 0, static_cast<uint64_t>(comm.rank()) + 1);
      for (const auto& parameter : engine.model().parameters().all()) {
        if (comm.rank() == 0 && parameter->automatic != nullptr) {
          found.push_back(parameter->stored_gradient.scales.as<float>()[0]);
        }
      }
    });
    return found;
  };
  const std::vector<float> one = scales(1.0F);    // 1 / sqrt(2) is rounded down to 1/2
  const std::vector<float> more = scales(1.5F);   // 1.06: 1
  const std::vector<float> less = scales(0.25F);  // 0.177: 1/8
  REQUIRE(one.size() == 8);
  for (size_t i = 0; i < one.size(); ++i) {
    CHECK(more[i] == 2.0F * one[i]);
    CHECK(less[i] == 0.25F * one[i]);
  }
}
