#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "base/trace.h"
#include "bench/bench.h"
#include "bench/parts.h"
#include "bench/step_model.h"
#include "comm/backends/backends.h"
#include "config/load.h"
#include "config/presets.h"
#include "config/yaml/problems.h"
#include "engine/dry_run.h"
#include "engine/engine.h"
#include "model/step_part.h"
#include "numeric/cpu_isa.h"
#include "ops/attention/attention.h"
#include "timeline.h"
#include "train/one_rank.h"
#include "train/rank_device.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// By operation; what spans of parts of a step have in addition to operations is one share.
Json shares_of_time() {
  double total = 0;
  double outside = 0;
  std::vector<std::pair<std::string, double>> shares;
  for (const SpanTotal& span : trace_totals()) {
    total += span.self_seconds;
    if (span.name == kStepSpan || value_in(kStepParts, span.name)) {
      outside += span.self_seconds;
    } else {
      shares.emplace_back(span.name, span.self_seconds);
    }
  }
  shares.emplace_back("outside operations", outside);
  std::sort(shares.begin(), shares.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  Json result = Json::object();
  for (const auto& [name, seconds] : shares) {
    result[name] = seconds / total;
  }
  return result;
}

/// Returns the number of steps that fit into `seconds`, by the time of one, on all ranks.
int64_t steps_within(Communicator& comm, const std::function<void()>& run, double seconds) {
  const Stopwatch first;
  run();
  const double wanted = seconds / std::max(first.seconds(), 1e-6);
  return comm.all_gather_values(static_cast<int64_t>(std::clamp(wanted, 5.0, 1000.0))).front();
}

/// Returns null where a step has left no memory for the products, which `why` says.
std::unique_ptr<GemmRate> make_ceiling(Device& device, DType dtype, std::string& why) {
  try {
    auto rate =
        device.kind() == DeviceKind::cuda
            ? std::make_unique<GemmRate>(device, dtype, std::vector<int64_t>{4096, 8192}, 10)
            : std::make_unique<GemmRate>(device, dtype, std::vector<int64_t>{512, 1024, 2048});
    while (rate->samples() == 0) rate->measure();
    return rate;
  } catch (const DeviceError& error) {
    why = error.what();
    return nullptr;
  }
}

/// Returns the median time of `count` steps, which all ranks begin together. Products of `ceiling`
/// are timed between them, for as long, so that both see the same disturbances.
double median_step(Communicator& comm, const std::function<void()>& run, int64_t count,
                   GemmRate* ceiling) {
  std::vector<double> times;
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    comm.all_gather_values(0);
    const Stopwatch watch;
    run();
    times.push_back(watch.seconds());
    total += times.back();
    while (ceiling != nullptr && ceiling->seconds() < total) ceiling->measure();
  }
  while (ceiling != nullptr && ceiling->samples() < 3) ceiling->measure();
  std::nth_element(times.begin(), times.begin() + count / 2, times.end());
  return times[static_cast<size_t>(count / 2)];
}

void trace_steps(Device& device, const std::function<void()>& run) {
  constexpr int kSteps = 5;
  constexpr size_t kEvents = size_t{1} << 18;
  // Spans wait for the compute stream only: what ranks exchange concurrently continues.
  set_tracing(
      true,
      device.kind() == DeviceKind::cuda ? [&] { device.synchronize(); } : std::function<void()>(),
      kEvents);
  for (int i = 0; i < kSteps; ++i) {
    const TraceSpan step(kStepSpan);
    run();
  }
  set_tracing(false);
}

/// The plan with its changes. Throws ConfigError.
PlanRequest plan_request(const StepBench& bench) {
  std::vector<Answer> answers = {{"precision.plan", bench.plan}};
  for (const std::string& set : bench.sets) {
    const size_t equals = set.find('=');
    const std::string key = set.substr(0, equals);
    if (equals == std::string::npos ||
        (!key.starts_with("precision.") && !key.starts_with("fp8."))) {
      throw ConfigError("--set " + set + ": expected precision.KEY=VALUE or fp8.KEY=VALUE");
    }
    if (key == "precision.plan") {
      throw ConfigError("--set " + set + ": the plan is that of --plan");
    }
    answers.push_back({key, set.substr(equals + 1)});
  }
  const ReadAnswers read = read_answers(answers);
  if (!read.objections.empty()) {
    const Objection& first = read.objections.front();
    std::string message = with_key(first.key, first.text);
    constexpr std::string_view kPlan = "precision.plan:";
    if (message.starts_with(kPlan)) {
      message.replace(0, kPlan.size(), "--plan:");
    }
    throw ConfigError(message);
  }
  return read.settings.precision;
}

/// The message with the options of this benchmark for the keys of a configuration.
std::string with_options(std::string message) {
  constexpr std::pair<const char*, const char*> kOptions[] = {
      {"precision.plan", "--plan"},
      {"training.micro_batch_size", "--micro-batch-size"},
      {"training.gradient_accumulation_steps", "--accumulation"},
      {"data.seq_length", "--seq-length"}};
  for (const auto& [key, option] : kOptions) {
    message = replaced(message, key, option);
  }
  return message;
}

}  // namespace

ModelConfig model_of(const StepBench& bench) {
  const Preset* preset = find_preset(bench.preset);
  if (preset == nullptr) {
    throw ConfigError("--preset: no preset '" + bench.preset + "'; `fp8train config list`");
  }
  ModelConfig model = preset->config;
  constexpr int64_t kCharacters = 65;
  model.vocab_size = bench.vocabulary != 0   ? bench.vocabulary
                     : model.vocab_size != 0 ? model.vocab_size
                                             : kCharacters;
  model.num_hidden_layers = bench.layers == 0 ? model.num_hidden_layers : bench.layers;
  std::erase_if(model.dense_layers, [&](int64_t one) { return one >= model.num_hidden_layers; });
  return completed(model);
}

EngineSettings engine_settings_of(const StepBench& bench) {
  if (bench.zero_stage > 3) {
    throw ConfigError(fmt::format("--zero-stage: {} is not in [0, 3]", bench.zero_stage));
  }
  Settings settings;
  settings.precision = plan_request(bench);
  settings.step = bench.settings;
  settings.parallelism.zero_stage = bench.zero_stage;
  settings.parallelism.bucket_bytes = bench.bucket_mb << 20;
  try {
    return engine_settings(settings, model_of(bench));
  } catch (const ConfigError& error) {
    throw ConfigError(with_options(error.what()));
  }
}

namespace {

/// The measurements of a step.
// NOLINTNEXTLINE(bugprone-exception-escape): an empty Json does not throw
struct StepMeasures {
  double seconds = 0;  ///< of a step
  double ceiling = 0;  ///< FLOPs per second of large GEMMs; 0: no_ceiling says why
  std::string no_ceiling;
  Traffic sent;             ///< by this rank, in a step
  size_t memory_bytes = 0;  ///< most at a time
  Json shares;              ///< of time
  StepTimes times;
};

/// Runs steps of `settings` on all ranks. Collective.
StepMeasures measure_step(Device& device, Communicator& comm, const BenchOptions& options,
                          const EngineSettings& settings, const StepPlan& plan) {
  const StepBench& bench = options.step;
  Engine engine(device, settings, &comm);
  engine.reserve(plan);
  if (bench.quick_weights) {
    set_quick_weights(device, engine.model().parameters());
  } else {
    engine.model().initialize(1);
  }
  engine.weights_changed();
  const Batch batch = random_batch(settings, comm.size(), static_cast<uint64_t>(comm.rank()));
  engine.model().scaling().end_first_windows();
  int64_t step = 0;
  const auto run = [&] {
    engine.step([&]() -> const Batch& { return batch; }, step++, 1e-4F, false);
    device.synchronize();
  };
  StepMeasures measures;
  run();
  const Traffic before = comm.traffic();
  run();
  const Traffic after = comm.traffic();
  measures.sent = {after.within_node - before.within_node,
                   after.between_nodes - before.between_nodes};
  const int64_t count = steps_within(comm, run, options.seconds);
  measures.memory_bytes = device.ledger().peak();
  const auto ceiling = make_ceiling(device, settings.plan.activation, measures.no_ceiling);
  measures.seconds = median_step(comm, run, count, ceiling.get());
  measures.ceiling = ceiling == nullptr ? 0 : ceiling->flops_per_second();
  engine.set_cuda_graphs(false);  // a recorded step has no spans
  trace_steps(device, run);
  measures.shares = shares_of_time();
  measures.times = step_times(trace_events());
  if (!bench.timeline.empty()) {
    write_timeline(comm, bench.timeline, trace_events());
  }
  return measures;
}

/// Of exchanges between several ranks.
void add_exchange_times(const StepTimes& times, Json& rates) {
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  rates["exchange_seconds"] = times.exchange;
  rates["exchange_in_backward"] = share(times.exchange_in_backward, times.exchange);
  rates["exchange_waited_seconds"] = times.exchange_waited;
  if (times.messages > 0) {  // not known where they follow a stream of the device
    rates["messages_seconds"] = times.messages;
    rates["messages_in_backward"] = share(times.messages_in_backward, times.messages);
  }
}

/// The measures of a step and what follows from them. Collective.
Json step_rates(Device& device, Communicator& comm, const BenchOptions& options, int64_t threads) {
  const EngineSettings settings = engine_settings_of(options.step);
  if (!options.step.timeline.empty()) {
    check_timeline_path(comm, options.step.timeline);
  }
  const DryRunStep dry_run = dry_run_step(settings, device, comm.topology(), comm.rank());
  const StepMeasures measures = measure_step(device, comm, options, settings, dry_run.plan);
  const auto tokens = static_cast<double>(settings.step.tokens());
  const double flops = dry_run.work.gemm_flops + dry_run.work.attention_flops;
  Json rates = {{"wire_bytes_within_node", measures.sent.within_node},
                {"wire_bytes_between_nodes", measures.sent.between_nodes},
                {"threads", threads},
                {"isa", name_of(cpu_isa())},
                {"gemm_engine", gemm_engine(device, settings.plan.activation)},
                {"attention", ops::attention_kernels(device.stream())},
                {"seconds_per_step", measures.seconds},
                {"tokens_per_second", tokens * comm.size() / measures.seconds},
                {"gflops", flops / measures.seconds / 1e9}};
  if (measures.ceiling > 0) {
    rates["gemm_ceiling_gflops"] = measures.ceiling / 1e9;
    rates["fraction_of_ceiling"] = flops / measures.seconds / measures.ceiling;
  } else {
    rates["gemm_ceiling"] = "not measured: " + measures.no_ceiling;
  }
  rates.update({{"memory_bytes", measures.memory_bytes},
                {"forward_seconds", measures.times.forward},
                {"head_seconds", measures.times.head},
                {"backward_seconds", measures.times.backward},
                {"update_seconds", measures.times.update}});
  if (comm.size() > 1) {
    add_exchange_times(measures.times, rates);
  }
  rates["time_shares"] = measures.shares;
  return rates;
}

/// The report of one plan, on a device of its own, so that memory and its peak are those of this
/// plan. Null where another rank has it.
Json measured_report(const BenchOptions& options, Communicator& host, int64_t threads) {
  const StepBench& bench = options.step;
  Settings settings;
  settings.device = device_choice_named(options.device);
  settings.gemm_tuning = options.tune;
  const RankDevice rank_device = take_device(settings, host);
  Communicator* const comm = rank_device.comm == nullptr ? &host : rank_device.comm.get();
  const Json rates = step_rates(*rank_device.device, *comm, options, threads);
  if (comm->rank() != 0) {
    return nullptr;
  }
  Json report = {{"bench", "step"},
                 {"preset", bench.preset},
                 {"layers", model_of(bench).num_hidden_layers},
                 {"plan", bench.plan},
                 {"set", bench.sets},
                 {"micro_batch_size", bench.settings.micro_batch_size},
                 {"seq_length", bench.settings.seq_length},
                 {"ranks", comm->size()},
                 {"zero_stage", bench.zero_stage},
                 {"bucket_mb", engine_settings_of(bench).strategy.bucket_bytes >> 20}};
  report.update(rates);
  return report;
}

/// The options of each plan, all of them checked before the first is measured. Throws ConfigError.
std::vector<BenchOptions> options_by_plan(const BenchOptions& options) {
  std::vector<BenchOptions> all;
  for (const std::string& plan : split(options.step.plan, ',')) {
    all.push_back(options);
    all.back().step.plan = plan;
    engine_settings_of(all.back().step);
  }
  if (all.size() > 1 && !options.step.timeline.empty()) {
    throw ConfigError("--timeline: is of one plan, and --plan names several");
  }
  return all;
}

constexpr int kDeviceFailed = 4;  // the exit code of a DeviceError

int run_steps(const BenchOptions& options, const ReportSink& report) {
  const std::vector<BenchOptions> plans = options_by_plan(options);
  if (is_modeled_device(options.device)) {
    for (const BenchOptions& each : plans) {
      report(step_model_report(each));
    }
    return 0;
  }
  if (!options.calibration.empty()) {
    throw ConfigError("--calibrate is for --device meta:GPU");
  }
  const std::unique_ptr<Communicator> host = make_communicator({});
  const int64_t threads = configure_threads(options.threads);
  int code = 0;
  for (const BenchOptions& each : plans) {
    try {
      const Json measured = measured_report(each, *host, threads);
      if (!measured.is_null()) {
        report(measured);
      }
    } catch (const DeviceError& error) {
      if (plans.size() == 1 || host->size() > 1) {  // other ranks would wait for this one
        throw;
      }
      set_tracing(false);  // it may still wait for a device that is gone
      report({{"bench", "step"}, {"plan", each.step.plan}, {"error", error.what()}});
      code = kDeviceFailed;
    }
  }
  return code;
}

void add_step_options(Arguments part, BenchOptions& options) {
  StepBench& bench = options.step;
  StepSettings& settings = bench.settings;
  part.option("--preset", bench.preset, "Model preset; `fp8train config list`");
  part.option("--plan", bench.plan, "Precision plan; several with commas, one after another");
  part.list("--set KEY=VALUE", bench.sets,
            "precision.KEY=v or fp8.KEY=v: change the plan (repeatable)");
  part.option("--micro-batch-size", settings.micro_batch_size, 1, "Sequences of a micro-batch");
  part.option("--seq-length", settings.seq_length, 1, "Tokens of a sequence");
  part.option("--accumulation", settings.gradient_accumulation_steps, 1, "Micro-batches of a step");
  part.option("--vocabulary", bench.vocabulary, 0, "0: the preset's, or 65");
  part.option("--layers", bench.layers, 0, "0: the preset's");
  part.option("--zero-stage", bench.zero_stage, 0, "With several ranks: the stage of ZeRO, 0 to 3");
  part.option("--bucket-mb", bench.bucket_mb, 0,
              "MiB of gradients that ranks exchange at a time; 0: by the model");
  part.path("--timeline", bench.timeline,
            "Write the last steps of all ranks here, for ui.perfetto.dev", PathUse::output);
  part.path("--calibrate", options.calibration,
            "With --device meta:GPU: products measured on such a GPU, a file of `bench products "
            "--json`");
  part.flag("--quick-weights", bench.quick_weights,
            "Weights are a few drawn values, repeated: a large model starts in seconds");
}

}  // namespace

const BenchPart kStepBench = {
    .name = "step",
    .help = "A whole training step",
    .example = "mpirun -n 2 fp8train bench step --preset llama-42m --zero-stage 1",
    .add_options = add_step_options,
    .run = run_steps,
    .is_tuned = true,
    .device_help =
        "cpu, cuda or auto; meta:h200 and the like: a model "
        "of the step on that GPU"};

}  // namespace fp8train
