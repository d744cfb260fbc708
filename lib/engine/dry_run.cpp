#include "engine/dry_run.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "base/trace.h"
#include "comm/backends/backends.h"
#include "device/meta/meta_device.h"
#include "engine/state_tensors.h"
#include "model/step_part.h"

namespace fp8train {

StepPlan plan_weights(const EngineSettings& settings, const DeviceTraits& traits) {
  const std::unique_ptr<Device> meta = make_meta_device(traits);
  Engine engine(*meta, settings);
  engine.weights_changed();
  return engine.high_water();
}

namespace {

/// The counters of a step at one of its points.
struct Counted {
  OpCounters work;
  Traffic sent, by_layers;
  size_t calls = 0;
};

void add_times(Traffic& total, const Traffic& from, const Traffic& to, int64_t times) {
  const auto count = static_cast<uint64_t>(times);
  total.within_node += count * (to.within_node - from.within_node);
  total.between_nodes += count * (to.between_nodes - from.between_nodes);
}

Traffic difference(const Traffic& to, const Traffic& from) {
  Traffic sent;
  add_times(sent, from, to, 1);
  return sent;
}

/// Adds the counts between two points, `times` times.
void add_times(Counted& total, const Counted& from, const Counted& to, int64_t times) {
  const auto factor = static_cast<double>(times);
  total.work.gemm_flops += factor * (to.work.gemm_flops - from.work.gemm_flops);
  total.work.gemm_flops_8bit += factor * (to.work.gemm_flops_8bit - from.work.gemm_flops_8bit);
  total.work.attention_flops += factor * (to.work.attention_flops - from.work.attention_flops);
  total.work.bytes += factor * (to.work.bytes - from.work.bytes);
  total.work.operations +=
      static_cast<uint64_t>(times) * (to.work.operations - from.work.operations);
  add_times(total.sent, from.sent, to.sent, times);
  add_times(total.by_layers, from.by_layers, to.by_layers, times);
}

/// NCCL allocates 4 MiB for each channel of a connection (NCCL User Guide, "Environment Variables",
/// NCCL_BUFFSIZE). Assumed: 8 ranks of a node, 4 channels to and from each of the 7 others for
/// messages, and rings of 24 channels for all-gathers, with the buffers of three protocols: 0.6
/// GiB, rounded up. The groups of a communicator share these (ncclConfig_t::splitShare).
constexpr size_t kNcclBytes = size_t{1} << 30;

/// Logs the calls of a device while it lives, with the names of open spans.
class CallLog {
 public:
  CallLog(MetaDevice& device, OpLog& calls) : device_(device) {
    set_tracing(true);
    device_.set_log(&calls);
  }
  ~CallLog() {
    device_.set_log(nullptr);
    set_tracing(false);
  }
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

 private:
  MetaDevice& device_;
};

/// Names the parts of calls outside of spans, and repeats those between `from` and `to`.
void finish_log(OpLog& calls, const std::vector<Counted>& begins, int64_t left_out) {
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].part[0] == '\0') {
      calls[i].part = name_of(i < begins.front().calls ? StepPart::start : StepPart::rest);
    }
    if (left_out > 0 && i >= begins[begins.size() - 2].calls && i < begins.back().calls) {
      calls[i].times += left_out;
    }
  }
}

/// Runs the steps that may need more memory than others. A step that samples needs more, and leaves
/// more gathered: the last one does not.
void run_first_steps(Engine& engine, const Batch& batch,
                     const std::function<void(int64_t index, bool collects_statistics)>& step) {
  engine.weights_changed();
  if (engine.model().scaling().first_windows() != FirstWindows::none) {
    engine.evaluate(batch);
    step(0, true);
    engine.model().scaling().end_first_windows();
  }
  for (const auto& [begin, end] : engine.settings().plain_steps) {
    step(begin, true);
    engine.evaluate(batch);
    step(end, true);
  }
  step(0, true);
  step(0, false);
}

/// A step of several micro-batches is the first, the last, and equal ones between: three of them
/// are run, whatever their number, and one more for each further stage of a pipeline. The last two
/// of these begin a forward and a backward pass apart.
DryRunStep dry_run_on(MetaDevice& meta, EngineSettings settings, const Topology& ranks, int rank,
                      bool logged = false) {
  const int64_t run = 2 + settings.strategy.layout.pipeline;
  const int64_t left_out = std::max<int64_t>(0, settings.step.gradient_accumulation_steps - run);
  settings.step.gradient_accumulation_steps -= left_out;
  const std::unique_ptr<Communicator> comm = make_dry_run(ranks, rank);
  Engine engine(meta, settings, comm.get());
  Batch batch;
  batch.rows = settings.step.micro_batch_size;
  batch.columns = settings.step.seq_length;
  DryRunStep dry_run;
  // The tokens of this batch are never read: there may be more than this machine holds.
  std::vector<Counted> begins;  // of the micro-batches of a step
  const auto counted = [&] {
    return Counted{meta.counters(), comm->traffic(), engine.sent_by_layers(), dry_run.calls.size()};
  };
  const auto step = [&](int64_t index, bool collects_statistics) {
    begins.clear();
    const auto next = [&]() -> const Batch& {
      begins.push_back(counted());
      return batch;
    };
    if (settings.trains) {
      engine.step(next, index, 0.0, collects_statistics);
    }
  };
  run_first_steps(engine, batch, step);
  meta.counters() = {};
  const Counted before = counted();
  {
    std::optional<CallLog> log;
    if (logged) {
      log.emplace(meta, dry_run.calls);
    }
    step(0, false);
  }
  Counted whole = counted();
  if (left_out > 0 && std::ssize(begins) == run) {
    add_times(whole, begins[begins.size() - 2], begins.back(), left_out);
  }
  finish_log(dry_run.calls, begins, left_out);
  dry_run.work = whole.work;
  dry_run.sent = difference(whole.sent, before.sent);
  dry_run.sent_by_layers = difference(whole.by_layers, before.by_layers);
  engine.evaluate(batch);
  dry_run.plan = engine.high_water();
  engine.reserve(dry_run.plan);
  if (ranks.size() > 1 && meta.traits().library_workspace > 0) {
    dry_run.nccl_bytes = kNcclBytes;
    meta.ledger().add(MemoryCategory::communication, kNcclBytes);
  }
  dry_run.memory = meta.ledger();
  dry_run.state_copy = settings.trains ? state_copy_bytes(engine) : 0;
  return dry_run;
}

}  // namespace

StageRuns dry_run_stages(const EngineSettings& settings, int ranks_of_stage,
                         const std::function<DryRunStep(int rank)>& of_rank) {
  const auto stages = static_cast<int>(settings.strategy.layout.pipeline);
  StageRuns all;
  std::map<std::tuple<int64_t, bool, bool>, size_t> of_kind;
  for (int stage = 0; stage < stages; ++stage) {
    const ModelPart part = part_of_stage(settings, stage);
    const auto [found, is_new] = of_kind.try_emplace(
        {part.end_block - part.first_block, part.embeds, part.has_head}, all.runs.size());
    all.of_stage.push_back(found->second);
    if (is_new) {
      all.runs.push_back(of_rank(stage * ranks_of_stage));
      all.runs.back().stage = stage;
      if (all.runs.back().memory.total() > all.largest_run().memory.total()) {
        all.largest = all.runs.size() - 1;
      }
    }
  }
  return all;
}

DryRunStep dry_run_step(const EngineSettings& settings, const DeviceTraits& traits,
                        const Topology& ranks, int rank) {
  MetaDevice meta(traits);
  return dry_run_on(meta, settings, ranks, rank);
}

DryRunStep logged_step(const EngineSettings& settings, const DeviceTraits& traits,
                       const Topology& ranks, int rank) {
  MetaDevice meta(traits);
  return dry_run_on(meta, settings, ranks, rank, true);
}

DryRunStep dry_run_step(const EngineSettings& settings, const Device& device, const Topology& ranks,
                        int rank) {
  MetaDevice meta(device.traits(), device.stream());
  return dry_run_on(meta, settings, ranks, rank);
}

}  // namespace fp8train
