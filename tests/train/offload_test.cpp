// Optimizer states, master weights and activations in memory of the host: the same bits, less
// memory of the device by exactly what has moved, and a step that takes the time of the link.

#include <catch2/catch.hpp>

#include <string>

#include "device/gpu_kinds.h"
#include "engine/roofline.h"
#include "precision/plan.h"
#include "support/temp_dir.h"
#include "train/rank_results.h"
#include "train/saved_states.h"
#include "train/trained_engine.h"

using namespace fp8train;

namespace {

EngineSettings offloaded(EngineSettings settings) {
  settings.optimizer.offloads = true;
  return settings;
}

MemoryLedger ledger_of(const EngineSettings& settings, int ranks = 1) {
  return dry_run_step(settings, DeviceTraits{}, Topology::blocks(ranks, ranks)).memory;
}

}  // namespace

TEST_CASE("states and masters in the host's memory change no bit") {
  const std::string plan = GENERATE(from_range(plan_names()));
  CAPTURE(plan);
  const EngineSettings settings = test::small_llama(plan);
  test::TrainedEngine on_device(settings);
  test::TrainedEngine on_host(offloaded(settings));
  on_device.train(3);
  on_host.train(3);
  CHECK(on_host.weights() == on_device.weights());
  const MemoryLedger& all = on_device.device->ledger();
  const MemoryLedger& rest = on_host.device->ledger();
  const size_t moved = rest.current(MemoryCategory::offloaded);
  CHECK(all.total() - rest.total() == moved);
  CHECK(rest.current(MemoryCategory::optimizer_state) == sizeof(ops::StepControl));
  CHECK(moved >= all.current(MemoryCategory::optimizer_state) - sizeof(ops::StepControl));
  CHECK(ledger_of(offloaded(settings)).current(MemoryCategory::offloaded) == moved);
}

TEST_CASE("every optimizer's states are moved, and no bit changes") {
  const EngineSettings settings =
      GENERATE(from_range(test::with_each_optimizer(test::small_llama("bf16"))));
  CAPTURE(settings.optimizer.name);
  test::TrainedEngine on_device(settings);
  test::TrainedEngine on_host(offloaded(settings));
  on_device.train(3);
  on_host.train(3);
  CHECK(on_host.weights() == on_device.weights());
  CHECK(on_host.device->ledger().current(MemoryCategory::offloaded) > 0);
}

TEST_CASE("masters that only the optimizer reads are moved") {
  // The embedding and the norms are read in fp32; the head is the master of its copy.
  const EngineSettings settings = test::small_llama("bf16");
  const size_t masters = ledger_of(settings).current(MemoryCategory::master_weights);
  CHECK(masters > 0);
  CHECK(ledger_of(offloaded(settings)).current(MemoryCategory::master_weights) == 0);
}

TEST_CASE("ranks that share the optimizer's work have their parts of it in the host's memory") {
  EngineSettings settings = test::tiny(GENERATE("bf16", "te-delayed", "msamp-o2", "coat"), 2);
  settings.strategy.zero_stage = GENERATE(0, 1, 2, 3);
  const bool plain = GENERATE(false, true);  // then layers make operands of gathered masters
  if (plain) {
    settings.plan.schedule = {{1, true}, {2, false}};
    settings.plain_steps = {{1, 2}};
  }
  CAPTURE(settings.plan.name, settings.strategy.zero_stage, plain);
  const Topology topology = Topology::blocks(2, 2);
  const auto on_device = test::train_ranks(settings, topology);
  const auto on_host = test::train_ranks(offloaded(settings), topology);
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(on_host[rank].weights == on_device[rank].weights);
    CHECK(on_host[rank].as_planned);
    CHECK(on_host[rank].bytes < on_device[rank].bytes);
  }
  // Gathered masters are on the device: what has moved is half of what one rank has.
  const size_t of_one = ledger_of(offloaded(settings)).current(MemoryCategory::offloaded);
  const size_t moved = ledger_of(offloaded(settings), 2).current(MemoryCategory::offloaded);
  CHECK(moved <= (settings.strategy.zero_stage == 0 ? of_one : of_one / 2 + 8192));
}

TEST_CASE("what is in the host's memory is saved and read as what is on the device") {
  const test::TempDir dir;
  const test::Layout layout = {2, 1};
  const EngineSettings settings = test::settings_of("msamp-o2", layout.stage);
  const auto save = [&](const std::string& name, const EngineSettings& of, const char* from) {
    test::run(layout, [&](Communicator& comm) {
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      Engine engine(*device, of, &comm);
      if (from == nullptr) {
        test::train(engine, comm);
      } else {
        load_optimizer_files(dir / from / "step-000001", engine);
      }
      test::save(dir / name, engine, comm);
    });
    return test::contents(dir / name / "step-000001");
  };
  const test::Bytes trained = save("host", offloaded(settings), nullptr);
  CHECK(save("device", settings, "host") == trained);
  CHECK(save("back", offloaded(settings), "device") == trained);
}

namespace {

EngineSettings with_blocks(EngineSettings settings, int64_t blocks) {
  settings.model.num_hidden_layers = blocks;
  return settings;
}

EngineSettings moving_activations(EngineSettings settings) {
  settings.step.decoder.offloads_saved = true;
  return settings;
}

}  // namespace

TEST_CASE("activations in the host's memory change no bit") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  const int64_t blocks = GENERATE(1, 2, 3, 6);
  CAPTURE(plan, blocks);
  EngineSettings settings = with_blocks(test::small_llama(plan, 2), blocks);
  settings.step.decoder.recompute = blocks == 6 ? Recompute::attention : Recompute::none;
  test::TrainedEngine on_device(settings);
  test::TrainedEngine on_host(moving_activations(settings));
  const uint64_t before = on_host.device->ledger().allocations();
  on_device.train(3);
  on_host.train(3);
  const MemoryLedger& ledger = on_host.device->ledger();
  CHECK(ledger.allocations() == before);
  CHECK(on_host.weights() == on_device.weights());
  CHECK((ledger.current(MemoryCategory::offloaded_activations) > 0) == (blocks > 2));
  CHECK((blocks < 6 || ledger.current(MemoryCategory::saved_activations) <
                           on_device.device->ledger().current(MemoryCategory::saved_activations)));
}

TEST_CASE("the activations of two blocks stay, whatever their number") {
  const auto saved = [](int64_t blocks) {
    const MemoryLedger ledger =
        ledger_of(moving_activations(with_blocks(test::small_llama("te-delayed"), blocks)));
    return std::pair(ledger.current(MemoryCategory::saved_activations),
                     ledger.current(MemoryCategory::offloaded_activations));
  };
  const EngineSettings settings = test::small_llama("te-delayed");
  const auto bytes_of_y =
      static_cast<size_t>(settings.step.micro_batch_tokens() * settings.model.hidden_size * 2);
  CHECK(saved(6).first - saved(4).first == 2 * bytes_of_y);  // a block's input stays
  CHECK(saved(6).second == 2 * saved(4).second);
  const auto moved = [&](Recompute recompute) {
    EngineSettings half = moving_activations(with_blocks(test::small_llama("te-delayed"), 4));
    half.step.decoder.recompute = recompute;
    return ledger_of(half).current(MemoryCategory::offloaded_activations);
  };
  CHECK(5 * (moved(Recompute::mlp) + moved(Recompute::attention)) < 6 * moved(Recompute::none));
}

TEST_CASE("blocks below the lowest that is trained are not moved") {
  EngineSettings settings = with_blocks(test::small_llama("te-current"), 5);
  settings.step.decoder.frozen = {"embedding.weight", "layers.0.*"};
  test::TrainedEngine on_device(settings);
  test::TrainedEngine on_host(moving_activations(settings));
  on_device.train(3);
  on_host.train(3);
  CHECK(on_host.weights() == on_device.weights());
}

TEST_CASE("ranks that gather units move activations as planned") {
  EngineSettings settings = with_blocks(test::tiny("te-delayed", 2), 4);
  settings.strategy.zero_stage = GENERATE(0, 3);
  const Topology topology = Topology::blocks(2, 2);
  const auto on_device = test::train_ranks(settings, topology);
  const auto on_host = test::train_ranks(moving_activations(settings), topology);
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(on_host[rank].weights == on_device[rank].weights);
    CHECK(on_host[rank].as_planned);
  }
}

TEST_CASE("copies of activations hide behind other work of their pass", "[roofline]") {
  const GpuKind& gpu = *find_gpu_kind("h100");
  const EngineSettings settings =
      moving_activations(with_blocks(test::small_llama("te-delayed"), 6));
  const OpLog calls = logged_step(settings, traits_of(gpu)).calls;
  const auto exposed = [&](double link) {
    GpuKind with_link = gpu;
    with_link.host_rate = link;
    double seconds = 0;
    for (const OpTotal& total : model_step(calls, settings, StepRates(with_link)).operations) {
      seconds += total.name == kSideCopy ? total.seconds : 0.0;
    }
    return seconds;
  };
  CHECK(exposed(64) == 0);
  CHECK(exposed(1e-4) > 0);
}

TEST_CASE("an update through the link takes the time of its bytes", "[roofline]") {
  const GpuKind& gpu = *find_gpu_kind("h100");
  const StepRates rates(gpu);
  const EngineSettings settings = test::small_llama("bf16");
  const auto update = [&](const EngineSettings& of) {
    double on_host = 0;
    double seconds = 0;
    for (const OpCall& call : logged_step(of, traits_of(gpu)).calls) {
      on_host += call.work.bytes.on_host;
      seconds += roofline(call.work, rates).seconds;
    }
    return std::pair(on_host, seconds);
  };
  const auto [none, before] = update(settings);
  const auto [moved, after] = update(offloaded(settings));
  CHECK(none == 0);
  // Both moments in fp32 are read and written, and the master, which is a part of the parameters.
  const auto state =
      static_cast<double>(ledger_of(settings).current(MemoryCategory::optimizer_state));
  CHECK(moved > 1.9 * state);
  CHECK(moved < 3.1 * state);
  CHECK(after > before);
  CHECK(roofline({.bytes = {2e9, 1e9}}, rates).seconds ==
        Approx(1e9 / (gpu.host_rate * 1e9 * rates.shares.wire)).epsilon(1e-3));
}
