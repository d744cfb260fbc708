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

#include "base/not_copied.h"
#include "base/trace.h"
#include "comm/backends/backends.h"
#include "device/meta/meta_device.h"
#include "device/meta/repeated_calls.h"
#include "engine/pass_times.h"
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
  add_times(total.work, from.work, to.work, times);
  add_times(total.sent, from.sent, to.sent, times);
  add_times(total.by_layers, from.by_layers, to.by_layers, times);
}

/// NCCL allocates 4 MiB for each channel of a connection (NCCL User Guide, "Environment Variables",
/// NCCL_BUFFSIZE). Assumed: 8 ranks of a node, 4 channels to and from each of the 7 others for
/// messages, and rings of 24 channels for all-gathers, with the buffers of three protocols: 0.6
/// GiB, rounded up. The groups of a communicator share these (ncclConfig_t::splitShare).
constexpr size_t kNcclBytes = size_t{1} << 30;

/// Logs the calls of a device while it lives, with the names of open spans.
class CallLog : NotCopied {
 public:
  CallLog(MetaDevice& device, OpLog& calls) : device_(device) {
    set_tracing(true);
    device_.set_log(&calls);
  }
  ~CallLog() {
    device_.set_log(nullptr);
    set_tracing(false);
  }

 private:
  MetaDevice& device_;
};

/// The micro-batches of a step that are run once for those that are left out.
struct Repeated {
  size_t first = 0, end = 0;
  int64_t times = 0;
};

/// A step of several micro-batches is the first, the last, and equal ones between: three of them
/// are run, whatever their number, and one more for each further stage of a pipeline. The last two
/// of these begin a forward and a backward pass apart. Interleaved schedules repeat themselves
/// after as many micro-batches as there are stages, once twice as many have begun. Of others
/// RankDryRun runs three, one after another; all in stage 3 of ZeRO and for several chunks.
Repeated repeated_part(const EngineSettings& settings) {
  const ParallelLayout& layout = settings.strategy.layout;
  if (layout.pipeline > 1 && !layout.is_periodic()) {
    return {};
  }
  const bool alternates = layout.schedule == ScheduleKind::one_forward_one_backward;
  const int64_t stages = layout.pipeline;
  const int64_t period = alternates ? 1 : stages;
  const int64_t run = alternates ? 2 + stages : 4 * stages;
  const int64_t first = alternates ? run - 2 : 2 * stages;
  return {static_cast<size_t>(first), static_cast<size_t>(first + period),
          std::max<int64_t>(0, settings.step.gradient_accumulation_steps - run) / period};
}

/// Names the parts of calls outside of spans, and repeats a part.
void finish_log(OpLog& calls, const std::vector<Counted>& begins, const Repeated& repeated) {
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].part[0] == '\0') {
      calls[i].part = name_of(i < begins.front().calls ? StepPart::start : StepPart::rest);
    }
    if (repeated.times > 0 && i >= begins[repeated.first].calls && i < begins[repeated.end].calls) {
      calls[i].times *= 1 + repeated.times;
    }
  }
}

/// Returns the first step after the warm-up of capacities that has scales if the first step has.
int64_t first_counted(const EngineSettings& settings) {
  const int64_t warmup = settings.step.decoder.moe.capacity_warmup;
  int64_t first = warmup;
  for (const auto& [begin, end] : settings.plain_steps) {
    if (!settings.is_plain(0) && begin <= first && first < end) {
      first = end;
    }
  }
  return settings.is_plain(0) && !settings.is_plain(first) ? 0 : first;
}

/// Runs the steps that may need more memory than others. A step that samples needs more, and leaves
/// more gathered: the last one does not.
void run_first_steps(Engine& engine, const Batch& batch,
                     const std::function<void(int64_t index, bool collects_statistics)>& step) {
  const ParameterGatherer* const gatherer = engine.strategy().gatherer();
  const auto first_step = [&](int64_t index) {  // where new weights are cast within it
    if (gatherer != nullptr && gatherer->gathers_per_pass()) {
      engine.weights_changed();
      step(index, true);
    }
  };
  engine.weights_changed();
  first_step(0);
  if (engine.model().scaling().first_windows() != FirstWindows::none) {
    engine.evaluate(batch);
    step(0, true);
    engine.model().scaling().end_first_windows();
    first_step(0);
  }
  for (const auto& [begin, end] : engine.settings().plain_steps) {
    first_step(begin);
    step(begin, true);
    engine.evaluate(batch);
    step(end, true);
    first_step(end);
  }
  step(0, true);
  if (const int64_t warmup = engine.settings().step.decoder.moe.capacity_warmup; warmup > 0) {
    step(warmup, true);
  }
  step(0, false);
}

/// A rank of a run on a meta device.
class RankDryRun {
 public:
  RankDryRun(MetaDevice& meta, const EngineSettings& settings, const Repeated& repeated,
             const Topology& ranks, int rank)
      : meta_(meta),
        repeated_(repeated),
        comm_(make_dry_run(ranks, rank)),
        engine_(meta, settings, comm_.get()) {
    // The tokens of this batch are never read: there may be more than this machine holds.
    batch_.rows = settings.step.micro_batch_size;
    batch_.columns = settings.step.seq_length;
  }

  /// Takes a step's memory, and counts its work. Ends where a rank needs more than `limit`.
  DryRunStep run(bool logged, size_t limit) {
    if (exceeds(limit)) {
      return std::move(dry_run_);
    }
    constexpr int64_t kFirstSteps = 2;  // micro-batches: the first and the last
    engine_.shorten_steps(kFirstSteps);
    run_first_steps(engine_, batch_,
                    [this](int64_t index, bool collects) { step(index, collects); });
    const ParallelLayout& layout = engine_.settings().strategy.layout;
    constexpr int64_t kCounted = 3;  // and one between them
    if (engine_.shorten_steps(layout.is_periodic() ? 0 : kCounted)) {
      repeated_ = {1, 2, engine_.settings().step.gradient_accumulation_steps - kCounted};
    }
    const StepPlan first = engine_.high_water();
    const auto in_flight = static_cast<size_t>(layout.pipeline);  // at most
    const size_t arenas = in_flight * first.saved_bytes + first.scratch_bytes;
    if (exceeds(limit) || limit - dry_run_.memory.total() < arenas) {
      engine_.reserve(first);
      if (exceeds(limit)) {
        return std::move(dry_run_);
      }
    }
    count_step(logged);
    engine_.shorten_steps(0);
    engine_.evaluate(batch_);
    dry_run_.plan = engine_.high_water();
    engine_.reserve(dry_run_.plan);
    const auto& make_samples = engine_.settings().samples;
    const std::shared_ptr<void> samples = make_samples ? make_samples(engine_) : nullptr;
    if (comm_->size() > 1 && meta_.traits().library_workspace > 0) {
      dry_run_.nccl_bytes = kNcclBytes;
      meta_.ledger().add(MemoryCategory::communication, kNcclBytes);
    }
    dry_run_.memory = meta_.ledger();
    dry_run_.state_copy = engine_.settings().trains ? state_copy_bytes(engine_) : 0;
    return std::move(dry_run_);
  }

 private:
  bool exceeds(size_t limit) {
    dry_run_.memory = meta_.ledger();
    dry_run_.is_bound = dry_run_.memory.total() > limit;
    return dry_run_.is_bound;
  }

  Counted counted() const {
    return {meta_.counters(), comm_->traffic(), engine_.sent_by_layers(), dry_run_.calls.size()};
  }

  void step(int64_t index, bool collects_statistics) {
    begins_.clear();
    const auto next = [&]() -> const Batch& {
      begins_.push_back(counted());
      return batch_;
    };
    if (engine_.settings().trains) {
      engine_.step(next, index, 0.0, collects_statistics);
    }
  }

  void count_step(bool logged) {
    meta_.counters() = {};
    const Counted before = counted();
    {
      std::optional<CallLog> log;
      if (logged) {
        log.emplace(meta_, dry_run_.calls);
      }
      step(first_counted(engine_.settings()), false);
    }
    Counted whole = counted();
    if (repeated_.times > 0 && begins_.size() > repeated_.end) {
      add_times(whole, begins_[repeated_.first], begins_[repeated_.end], repeated_.times);
    }
    finish_log(dry_run_.calls, begins_, repeated_);
    dry_run_.work = whole.work;
    dry_run_.sent = difference(whole.sent, before.sent);
    dry_run_.sent_by_layers = difference(whole.by_layers, before.by_layers);
  }

  MetaDevice& meta_;
  Repeated repeated_;
  std::unique_ptr<Communicator> comm_;
  Engine engine_;
  Batch batch_;
  std::vector<Counted> begins_;  ///< of the micro-batches of a step
  DryRunStep dry_run_;
};

DryRunStep dry_run_on(MetaDevice& meta, EngineSettings settings, const Topology& ranks, int rank,
                      bool logged = false, size_t limit = SIZE_MAX) {
  const Repeated repeated = repeated_part(settings);
  settings.step.gradient_accumulation_steps -=
      repeated.times * static_cast<int64_t>(repeated.end - repeated.first);
  return RankDryRun(meta, settings, repeated, ranks, rank).run(logged, limit);
}

}  // namespace

StageRuns dry_run_stages(const EngineSettings& settings, int ranks, const DryRunOfRank& of_rank) {
  const auto stages = static_cast<int>(settings.strategy.layout.pipeline);
  // A later stage of a zero-bubble schedule, or of one from a file, can store more than the one
  // before it.
  const bool each = !settings.strategy.layout.is_periodic();
  EngineSettings in_order = settings;
  if (each && stages > 1) {
    in_order.strategy.layout.given_schedule = schedule_of(settings);
  }
  StageRuns all;
  std::map<std::tuple<std::vector<int64_t>, bool, bool, int>, size_t> of_kind;
  for (int stage = 0; stage < stages; ++stage) {
    const ModelPart part = part_of_stage(settings, stage);
    std::vector<int64_t> blocks;
    for (const auto& [first, end] : part.chunks) {
      blocks.push_back(end - first);
    }
    const auto [found, is_new] = of_kind.try_emplace(
        {blocks, part.embeds, part.has_head, each ? stage : 0}, all.runs.size());
    all.of_stage.push_back(found->second);
    if (is_new) {
      all.runs.push_back(of_rank(in_order, stage * (ranks / stages)));
      all.runs.back().stage = stage;
      if (all.runs.back().memory.total() > all.largest_run().memory.total()) {
        all.largest = all.runs.size() - 1;
      }
    }
  }
  return all;
}

DryRunOfRank dry_runs_on(const DeviceTraits& traits, const Topology& ranks, bool logged) {
  return [&traits, &ranks, logged](const EngineSettings& settings, int rank) {
    return logged ? logged_step(settings, traits, ranks, rank)
                  : dry_run_step(settings, traits, ranks, rank);
  };
}

DryRunStep dry_run_step(const EngineSettings& settings, const DeviceTraits& traits,
                        const Topology& ranks, int rank) {
  MetaDevice meta(traits);
  return dry_run_on(meta, settings, ranks, rank);
}

DryRunStep logged_step(const EngineSettings& settings, const DeviceTraits& traits,
                       const Topology& ranks, int rank, size_t limit) {
  MetaDevice meta(traits);
  return dry_run_on(meta, settings, ranks, rank, true, limit);
}

DryRunStep dry_run_step(const EngineSettings& settings, const Device& device, const Topology& ranks,
                        int rank) {
  MetaDevice meta(device.traits(), device.stream());
  return dry_run_on(meta, settings, ranks, rank);
}

}  // namespace fp8train
