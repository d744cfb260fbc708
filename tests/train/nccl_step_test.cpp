// Training on several ranks with GPUs, over NCCL: the same losses as the same ranks on the cpu. On
// as many GPUs as are here, or through the host shim before the fake NCCL. Which device and
// communicator a rank takes.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "comm/nccl_ranks.h"
#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "support/small_moe.h"
#include "train/rank_device.h"
#include "train/ranks.h"

#if defined(FP8TRAIN_CUDA_SHIM)
#include "cuda_runtime_api.h"
#include "nccl_fake.h"
#endif

namespace fp8train {
namespace {

constexpr int64_t kSteps = 3;

struct Trained {
  std::vector<double> losses;
  std::vector<float> weights;
  Traffic traffic;
};

/// Ranks begin with the values that one rank would draw or, all with the same ones, with those of
/// the first rank.
Trained train_on(Device& device, Communicator& comm, const EngineSettings& settings) {
  const Traffic before = comm.traffic();
  Engine engine(device, settings, &comm);
  engine.reserve(dry_run_step(settings, device, comm.topology(), comm.rank()).plan);
  const auto data_ranks = static_cast<uint64_t>(engine.mesh().size(Axis::data));
  const auto data_rank = static_cast<uint64_t>(engine.mesh().index(Axis::data));
  const bool are_replicas =
      data_ranks == static_cast<uint64_t>(comm.size()) && settings.strategy.layout.expert == 1;
  if (settings.strategy.zero_stage == 0 && are_replicas) {
    engine.model().initialize(static_cast<uint64_t>(comm.rank()) + 3);
    share_weights(engine.mesh(), device, engine.model().parameters());
  } else {
    engine.model().initialize(3);
  }
  engine.weights_changed();
  Trained trained;
  uint64_t pass = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.step([&] { return test::random_batch(pass++ * data_ranks + data_rank); }, step, 1e-3,
                true);
    trained.losses.push_back(engine.step_loss().mean);
  }
  trained.weights = test::values_of(engine);
  trained.traffic = {.within_node = comm.traffic().within_node - before.within_node,
                     .between_nodes = comm.traffic().between_nodes - before.between_nodes};
  return trained;
}

struct RankTolerance {
  const char* plan = "";
  double loss = 0;  // relative difference of the loss, for each step
  int zero_stage = 0;
  int64_t shard_ranks = 0;  // and each micro-batch is exchanged
};

/// Of 2 ranks, or 4 on 2 nodes; the tolerances of cuda_step_test.cpp.
void compare_with_cpu(const Topology& topology, const RankTolerance& tolerance) {
  CAPTURE(tolerance.plan, topology.size());
  const auto ranks = static_cast<size_t>(topology.size());
  EngineSettings settings = test::small_llama(tolerance.plan, tolerance.shard_ranks > 0 ? 2 : 1);
  settings.strategy.bucket_bytes = 4096;
  settings.strategy.zero_stage = tolerance.zero_stage;
  settings.strategy.shard_ranks = tolerance.shard_ranks;
  settings.strategy.sync_each_batch = tolerance.shard_ranks > 0;
  std::vector<Trained> cpu(ranks);
  std::vector<Trained> cuda(ranks);
  const auto errors =
      test::run_nccl_ranks(topology, [&](Communicator& comm, Device& device, Communicator& host) {
        const auto rank = static_cast<size_t>(comm.rank());
        cpu[rank] = train_on(*make_device(DeviceKind::cpu), host, settings);
        cuda[rank] = train_on(device, comm, settings);
      });
  REQUIRE(errors == std::vector<std::string>(ranks));
  for (size_t step = 0; step < kSteps; ++step) {
    CHECK(cuda[0].losses[step] ==
          Approx(cpu[0].losses[step]).epsilon(tolerance.loss * static_cast<double>(step + 1)));
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t bytes = cuda[0].weights.size() * sizeof(float);
    CHECK(std::memcmp(cuda[rank].weights.data(), cuda[0].weights.data(), bytes) == 0);
    CHECK(cuda[rank].losses == cuda[0].losses);
  }
}

TEST_CASE("steps of ranks over NCCL give the losses of the same ranks on the cpu", "[cuda][nccl]") {
  if (test::gpus_for_ranks(2) < 2) {
    return;
  }
  for (const RankTolerance& tolerance :
       {RankTolerance{"fp32", 1e-6}, RankTolerance{"bf16", 2e-4}, RankTolerance{"te-delayed", 2e-3},
        RankTolerance{"msamp-o2", 2e-3}, RankTolerance{"fp8-lm", 2e-3},
        RankTolerance{"deepseek-v3", 2e-3}, RankTolerance{"fp8-min", 2e-3}}) {
    compare_with_cpu(Topology::blocks(2, 2), tolerance);
  }
}

TEST_CASE("steps of ranks that share weights, gradients and moments over NCCL", "[cuda][nccl]") {
  if (test::gpus_for_ranks(2) < 2) {
    return;
  }
  for (const RankTolerance& tolerance :
       {RankTolerance{"fp32", 1e-6, 1}, RankTolerance{"te-current", 2e-3, 3},
        RankTolerance{"bf16", 2e-4, 2}, RankTolerance{"te-delayed", 2e-3, 3},
        RankTolerance{"msamp-o2", 2e-3, 2}, RankTolerance{"fp8-lm", 2e-3, 1},
        RankTolerance{"fp8-min", 2e-3, 3}}) {
    compare_with_cpu(Topology::blocks(2, 2), tolerance);
  }
}

TEST_CASE("steps of ranks on two nodes over NCCL", "[cuda][nccl]") {
  if (test::gpus_for_ranks(4) == 4) {
    compare_with_cpu(Topology::blocks(4, 2), {"fp8-safe", 2e-3});
    compare_with_cpu(Topology::blocks(4, 2), {"deepseek-v3", 2e-3, 3, 2});
  }
}

struct Layout {
  std::string_view name;
  int ranks = 2;
  ParallelLayout layout;
  int zero_stage = 0;
};

TEST_CASE("steps of ranks that share layers, stages, sequences and experts over NCCL",
          "[cuda][nccl]") {
  const Layout parts =
      GENERATE(Layout{"tensor", 2, {.tensor = 2}}, Layout{"context heads", 2, {.context = 2}},
               Layout{"context gather", 2, {.context = 2, .context_kind = ContextKind::gather}},
               Layout{"1f1b", 2, {.pipeline = 2}},
               Layout{"zero bubble", 2, {.pipeline = 2, .schedule = ScheduleKind::zero_bubble}},
               Layout{"expert", 2, {.expert = 2}},
               Layout{"tensor and stages", 4, {.tensor = 2, .pipeline = 2}},
               Layout{"tensor and ZeRO", 4, {.tensor = 2}, 3});
  const auto [plan, tolerance] =
      GENERATE(std::pair{"fp32", 1e-6}, std::pair{"te-delayed", 2e-3}, std::pair{"fp8-lm", 2e-3});
  CAPTURE(parts.name, plan);
  if (test::gpus_for_ranks(parts.ranks) < parts.ranks) {
    return;
  }
  EngineSettings settings =
      parts.layout.expert > 1 ? test::small_deepseek(plan) : test::small_llama(plan, 2);
  settings.model.num_key_value_heads = 2;
  settings.step.decoder.moe.bias_rate = 1e-3;  // an expert's bias may move the other way
  settings.strategy.layout = parts.layout;
  settings.strategy.zero_stage = parts.zero_stage;
  const auto ranks = static_cast<size_t>(parts.ranks);
  std::vector<Trained> cpu(ranks), cuda(ranks);
  const auto errors =
      test::run_nccl_ranks(Topology::blocks(parts.ranks, parts.ranks),
                           [&](Communicator& comm, Device& device, Communicator& host) {
                             const auto rank = static_cast<size_t>(comm.rank());
                             cpu[rank] = train_on(*make_device(DeviceKind::cpu), host, settings);
                             cuda[rank] = train_on(device, comm, settings);
                           });
  REQUIRE(errors == std::vector<std::string>(ranks));
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t step = 0; step < kSteps; ++step) {
      CHECK(cuda[rank].losses[step] ==
            Approx(cpu[rank].losses[step]).epsilon(tolerance * static_cast<double>(step + 1)));
    }
    double worst = 0;
    REQUIRE(cuda[rank].weights.size() == cpu[rank].weights.size());
    for (size_t i = 0; i < cpu[rank].weights.size(); ++i) {
      worst = std::max(worst, std::abs(double{cuda[rank].weights[i]} - cpu[rank].weights[i]));
    }
    CHECK(worst <= (tolerance < 1e-5 ? 1e-4 : 6e-3));  // AdamW moves a value by 1e-3 in a step
  }
}

TEST_CASE("each rank takes the GPU of its local rank") {
  CHECK(gpu_of_rank(0, 1, 8) == 0);
  CHECK(gpu_of_rank(3, 4, 4) == 3);
  CHECK(gpu_of_rank(1, 2, 8) == 1);
  CHECK(gpu_of_rank(3, 4, 1) == 0);  // --gpu-bind leaves each its own
  CHECK_THROWS_WITH(gpu_of_rank(4, 8, 4), Catch::Contains("at least 8 ranks") &&
                                              Catch::Contains("each sees 4 GPUs") &&
                                              Catch::Contains("--ntasks-per-node"));
}

#if defined(FP8TRAIN_CUDA_SHIM)
struct Taken {
  std::string gpu, kind, note;
};

/// What two ranks take, or what they throw.
std::vector<std::string> take(DeviceChoice device, CommBackend backend, std::vector<Taken>& taken) {
  taken.assign(2, {});
  Settings settings;
  settings.device = device;
  settings.comm.backend = backend;
  settings.gemm_tuning = false;
  return test::run_ranks(Topology::blocks(2, 2), [&](Communicator& host) {
    const RankDevice rank_device = take_device(settings, host);
    taken[static_cast<size_t>(host.rank())] = {
        rank_device.device->hardware_id(),
        rank_device.comm == nullptr ? "" : rank_device.comm->description(), rank_device.note};
  });
}

TEST_CASE("ranks on GPUs talk over NCCL, or through host memory, as settings say", "[cuda]") {
  test::gpus_for_ranks(2);
  const std::vector<std::string> fine(2);
  std::vector<Taken> taken;
  CHECK(take(DeviceChoice::cuda, CommBackend::automatic, taken) == fine);
  CHECK(taken[0].kind == "nccl: rank 0 of 2, node 0 of 1");
  CHECK(taken[0].gpu == "0000:00:00.0");
  CHECK(taken[1].gpu == "0000:01:00.0");
  CHECK(taken[1].note.empty());
  CHECK(take(DeviceChoice::cuda, CommBackend::mpi, taken) == fine);
  CHECK(taken[1].kind == "staged: rank 1 of 2, node 0 of 1");
  CHECK(taken[1].note == "gradients cross through host memory");
  CHECK(take(DeviceChoice::cpu, CommBackend::automatic, taken) == fine);
  CHECK(taken[1].kind.empty());
  CHECK_THAT(take(DeviceChoice::cpu, CommBackend::nccl, taken)[0],
             Catch::Contains("comm.backend: nccl is for ranks on GPUs"));
  shim::set_nccl_installed(false);
  CHECK(take(DeviceChoice::cuda, CommBackend::automatic, taken) == fine);
  CHECK_THAT(taken[0].kind + taken[0].note,
             Catch::Contains("staged") && Catch::Contains("libnccl.so.2 is not found"));
  shim::set_nccl_installed(true);
  shim::set_device_count(1);
  CHECK_THAT(take(DeviceChoice::cuda, CommBackend::nccl, taken)[1],
             Catch::Contains("are on one GPU"));
  CHECK(take(DeviceChoice::cuda, CommBackend::mpi, taken) == fine);
}
#endif

}  // namespace
}  // namespace fp8train
