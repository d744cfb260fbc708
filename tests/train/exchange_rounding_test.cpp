// Gradients of MS-AMP's plans on several ranks, through engines: a contribution is rounded to E4M3
// once, on its way, under the scale that ranks share. What an engine has after the exchange is held
// against contributions in fp32 that are rounded here.

#include <catch2/catch.hpp>

#include <cmath>

#include "engine/dry_run.h"
#include "numeric/convert.h"
#include "numeric/scale.h"
#include "ops/storage/storage.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "tensor/tensor.h"

using namespace fp8train;

namespace {

using Gradients = std::vector<std::vector<float>>;  ///< of each parameter whose gradient is E4M3

EngineSettings settings_of(int stage) {
  EngineSettings settings = test::small_llama("msamp-o1");
  settings.strategy.bucket_bytes = 4096;
  settings.strategy.zero_stage = stage;
  return settings;
}

/// What rank `rank` trains on; without targets its contribution is zero.
Batch batch_of(int rank, bool contributes) {
  Batch batch = test::random_batch(static_cast<uint64_t>(rank) + 50);
  if (!contributes) {
    std::fill(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
  }
  return batch;
}

void run_step(Engine& engine, const Batch& batch) {
  engine.model().initialize(3);
  engine.weights_changed();
  engine.step([&] { return batch; }, 0, 1e-3, false);
}

/// Of one rank alone, never rounded: by an engine whose gradients are fp32.
Gradients contribution(const Batch& batch, int ranks) {
  EngineSettings settings = settings_of(0);
  settings.plan.weight_gradient = settings.plan.gradient_wire = plain(DType::f32);
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, DeviceTraits{}).plan);
  run_step(engine, batch);
  Gradients gradients;
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->formats.value.is_scaled()) {
      std::vector<float>& values =
          gradients.emplace_back(to_host_f32(*device, parameter->gradient));
      for (float& value : values) {
        value /= static_cast<float>(ranks);
      }
    }
  }
  return gradients;
}

/// The exchanged sums, put together from the parts that ranks update.
Gradients exchanged(int ranks, int stage, bool all_contribute) {
  const EngineSettings settings = settings_of(stage);
  Gradients sums;
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, settings, &comm);
        engine.reserve(dry_run_step(settings, DeviceTraits{}, comm.topology(), comm.rank()).plan);
        run_step(engine, batch_of(comm.rank(), all_contribute || comm.rank() == 0));
        const auto& parameters = engine.model().parameters().all();
        for (int active = 0; active < ranks; ++active) {  // one after another
          size_t index = 0;
          for (const auto& parameter : parameters) {
            const Parameter::Updated& own = parameter->updated;
            if (active != comm.rank() || !parameter->formats.value.is_scaled()) {
              continue;
            }
            sums.resize(std::max(sums.size(), index + 1));
            std::vector<float>& sum = sums[index++];
            sum.resize(static_cast<size_t>(parameter->shape.count()));
            if (own.count() > 0) {
              const View part = {sum.data() + own.first, DType::f32, {own.count()}};
              Encoded flat = own.gradient;
              flat.codes.shape = {own.count()};
              ops::read_stored(device->stream(), flat, part);
            }
          }
          comm.barrier().wait();
        }
      });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(ranks)));
  return sums;
}

/// Relative to `exact`, in the norm of squares, each tensor with equal weight.
double error_of(const Gradients& found, const Gradients& exact) {
  double of_all = 0;
  REQUIRE(found.size() == exact.size());
  for (size_t t = 0; t < exact.size(); ++t) {
    double squares = 0;
    double difference = 0;
    for (size_t i = 0; i < exact[t].size(); ++i) {
      squares += static_cast<double>(exact[t][i]) * exact[t][i];
      difference += std::pow(static_cast<double>(found[t][i]) - exact[t][i], 2);
    }
    of_all += difference / squares / static_cast<double>(exact.size());
  }
  return std::sqrt(of_all);
}

struct Trial {
  Gradients exact, rounded_once;
};

/// Sums of contributions in fp64, and of the same after one rounding each: codes under
/// 2^floor(log2(448 / amax)) / sqrt(N), added in rank order in fp16 and rounded to codes again
/// (MS-AMP, msamp/nn/distributed.py; msccl-executor-nccl, reduce_kernel.h).
Trial expected(const std::vector<Gradients>& contributions, int ranks) {
  Trial trial;
  for (size_t t = 0; t < contributions[0].size(); ++t) {
    float amax = 0;
    for (const Gradients& of_rank : contributions) {
      for (const float value : of_rank[t]) {
        amax = std::max(amax, std::abs(value));
      }
    }
    const float scale = std::exp2(std::floor(std::log2(448.0F / amax))) *
                        (1.0F / std::sqrt(static_cast<float>(ranks)));
    std::vector<float>& exact = trial.exact.emplace_back();
    std::vector<float>& rounded = trial.rounded_once.emplace_back();
    for (size_t i = 0; i < contributions[0][t].size(); ++i) {
      double sum = 0;
      float codes = 0;
      for (size_t rank = 0; rank < contributions.size(); ++rank) {
        const float value = contributions[rank][t][i];
        const float code = decode(encode<e4m3>(value * scale));
        sum += value;
        codes = rank == 0 ? code : decode(encode<e4m3>(decode(encode<f16>(codes + code))));
      }
      exact.push_back(static_cast<float>(sum));
      rounded.push_back(codes / scale);
    }
  }
  return trial;
}

}  // namespace

TEST_CASE("a contribution to a gradient is rounded once on its way, in every layout") {
  const int ranks = GENERATE(2, 8, 32);
  const Trial one = expected({contribution(batch_of(0, true), ranks)}, ranks);
  const double once = error_of(one.rounded_once, one.exact);
  CHECK(100 * once == Approx(2.6).margin(0.15));  // of E4M3
  std::vector<int> stages = {0};
  if (ranks == 2) {
    stages = {0, 1, 2, 3};
  }
  for (const int stage : stages) {
    // The other ranks add zeros, so that the sum rounds nothing.
    const double error = error_of(exchanged(ranks, stage, false), one.exact);
    INFO(ranks << " ranks, stage " << stage << ": " << 100 * error << " % for " << 100 * once);
    CHECK(error < 1.03 * once);
    CHECK(error > 0.97 * once);
  }
}

TEST_CASE("an exchanged sum has the error of contributions that are rounded once") {
  const int ranks = GENERATE(2, 8, 32);
  std::vector<Gradients> contributions;
  for (int rank = 0; rank < ranks; ++rank) {
    contributions.push_back(contribution(batch_of(rank, true), ranks));
  }
  const Trial trial = expected(contributions, ranks);
  const double once = error_of(trial.rounded_once, trial.exact);
  const double error = error_of(exchanged(ranks, 0, true), trial.exact);
  INFO(ranks << " ranks: " << 100 * error << " % for " << 100 * once);
  CHECK(error < 1.03 * once);
  CHECK(error > 0.97 * once);
}
