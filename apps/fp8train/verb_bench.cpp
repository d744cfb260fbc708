// fp8train bench: steps, GEMMs and casts on this machine, and the errors of formats. Rates are
// medians; a step is compared with the GEMM ceiling measured in the same run.

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/philox.h"
#include "base/trace.h"
#include "bench.h"
#include "bench_attention.h"
#include "bench_gemm_error.h"
#include "bench_optimizer_formats.h"
#include "config/load.h"
#include "config/presets.h"
#include "numeric/cpu_isa.h"
#include "ops/gemm.h"
#include "ops/quantize.h"
#include "train/session.h"
#include "train/threads.h"
#include "verbs.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  bool json = false, tune = false;
  std::string device = "auto";
  int64_t threads = 0;
  double seconds = 3.0;
  std::string preset = "nanogpt-laptop", plan = "bf16", sizes = "256,512,1024,2048";
  int64_t micro_batch_size = 12, seq_length = 64, accumulation = 1, vocabulary = 65, layers = 0;
  int64_t batch = 4, heads = 8, kv_heads = 8, head_dim = 64;
  double beta2 = 0.95;
  int64_t steps = 300;
};

std::unique_ptr<Device> open_device(const BenchOptions& options, int64_t& threads) {
  threads = configure_threads(options.threads);
  std::string reason;
  return choose_device(options.device, options.tune, reason);
}

EngineSettings step_settings(const BenchOptions& options) {
  const Preset* preset = find_preset(options.preset);
  if (preset == nullptr) {
    throw ConfigError("--preset: no preset '" + options.preset + "'; `fp8train config list`");
  }
  Settings settings;
  settings.precision.plan = options.plan;
  settings.training.micro_batch_size = options.micro_batch_size;
  settings.training.gradient_accumulation_steps = options.accumulation;
  settings.data.seq_length = options.seq_length;
  ModelConfig model = preset->config;
  model.vocab_size = model.vocab_size == 0 ? options.vocabulary : model.vocab_size;
  model.num_hidden_layers = options.layers == 0 ? model.num_hidden_layers : options.layers;
  return engine_settings(settings, completed(model));
}

Batch random_batch(const EngineSettings& settings) {
  Batch batch;
  batch.rows = settings.micro_batch_size;
  batch.columns = settings.seq_length;
  const auto vocabulary = static_cast<uint32_t>(settings.model.vocab_size);
  for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
    const PhiloxBlock bits = philox(2, 0, static_cast<uint64_t>(i));
    batch.tokens.push_back(static_cast<int32_t>(bits.word[0] % vocabulary));
    batch.targets.push_back(static_cast<int32_t>(bits.word[1] % vocabulary));
  }
  return batch;
}

const char* gemm_engine(const Device& device, DType operand) {
  return device.kind() == DeviceKind::cuda ? "cuBLASLt" : ops::cpu_gemm_engine(operand);
}

Json shares_of_time() {
  Json shares;
  double total = 0;
  for (const SpanTotal& span : trace_totals()) {
    total += span.self_seconds;
  }
  for (const SpanTotal& span : trace_totals()) {
    shares[span.name] = span.self_seconds / total;
  }
  return shares;
}

Json bench_step(const BenchOptions& options) {
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  const EngineSettings settings = step_settings(options);
  OpCounters work;
  const StepPlan plan = plan_step(settings, *device, nullptr, &work);
  Engine engine(*device, settings);
  engine.reserve(plan);
  engine.model().initialize(1);
  engine.weights_changed();
  const Batch batch = random_batch(settings);
  int64_t step = 0;
  const auto run = [&] {
    engine.step([&]() -> const Batch& { return batch; }, step++, 1e-4F, false);
    device->synchronize();
  };
  run();
  const double seconds = median_seconds(run, options.seconds);
  engine.set_record(false);  // a recorded step has no spans
  set_tracing(true, device->kind() == DeviceKind::cuda ? [&] { device->synchronize(); }
                                                       : std::function<void()>());
  for (int i = 0; i < 5; ++i) {
    const TraceSpan outside("outside operations");
    run();
  }
  const Json shares = shares_of_time();
  set_tracing(false);
  const DType operand = settings.plan.activation;
  const double ceiling = gemm_ceiling(*device, operand);
  const double tokens = static_cast<double>(settings.micro_batch_size * settings.seq_length *
                                            settings.gradient_accumulation_steps);
  const double flops = work.gemm_flops + work.attention_flops;
  return {{"bench", "step"},
          {"preset", options.preset},
          {"plan", options.plan},
          {"micro_batch_size", settings.micro_batch_size},
          {"seq_length", settings.seq_length},
          {"threads", threads},
          {"isa", name_of(cpu_isa())},
          {"gemm_engine", gemm_engine(*device, operand)},
          {"seconds_per_step", seconds},
          {"tokens_per_second", tokens / seconds},
          {"gflops", flops / seconds / 1e9},
          {"gemm_ceiling_gflops", ceiling / 1e9},
          {"fraction_of_ceiling", flops / seconds / ceiling},
          {"memory_bytes", device->ledger().peak()},
          {"time_shares", shares}};
}

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const int64_t size = std::strtoll(text.substr(begin, comma - begin).c_str(), nullptr, 10);
    if (size <= 0) {
      throw ConfigError("--sizes: expected positive numbers with commas, got '" + text + "'");
    }
    sizes.push_back(size);
    begin = comma + 1;
  }
  return sizes;
}

TensorFormat granular(Granularity granularity) {
  TensorFormat format = plain(DType::e4m3);
  format.granularity = granularity;
  format.policy = ScalePolicy::current;
  format.scale_type = granularity == Granularity::block_1x32 ? ScaleType::e8m0 : ScaleType::f32;
  return format;
}

/// Products of operands with a scale for each granule.
void bench_scaled(Device& device, int64_t size, double seconds, Json& results) {
  using enum Granularity;
  for (const auto& [a, b] : {std::pair{row, row},
                             {block_1x128, block_128x128},
                             {block_1x128, block_1x128},
                             {block_1x32, block_1x32}}) {
    const ScaledRate rate =
        scaled_gemm_rate(device, granular(a), granular(b), size, size, size, seconds);
    const bool native = rate.dequantized_because.empty();
    results.push_back({{"size", size},
                       {"operands", fmt::format("e4m3 {} x {}", name_of(a), name_of(b))},
                       {"engine", gemm_engine(device, native ? DType::e4m3 : DType::bf16)},
                       {"gflops", rate.flops / 1e9}});
    if (!native) {
      results.back()["dequantized"] = rate.dequantized_because;
    }
  }
}

Json bench_gemm(const BenchOptions& options) {
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  Json results = Json::array();
  for (const int64_t size : parse_sizes(options.sizes)) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
      const double rate = gemm_rate(*device, dtype, size, size, size, options.seconds / 6);
      results.push_back({{"size", size},
                         {"operands", name_of(dtype)},
                         {"engine", gemm_engine(*device, dtype)},
                         {"gflops", rate / 1e9}});
    }
    bench_scaled(*device, size, options.seconds / 6, results);
  }
  return {{"bench", "gemm"}, {"threads", threads}, {"results", results}};
}

Json bench_cast(const BenchOptions& options) {
  constexpr int64_t kRows = 1024;
  constexpr int64_t kColumns = 4096;
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  const Tensor scale(*device, DType::f32, {3}, MemoryCategory::workspace);
  const float ones[] = {1.0F, 1.0F, 0.0F};
  copy_from_host(*device, scale, ones);
  Json results = Json::array();
  for (const DType from : {DType::f32, DType::bf16}) {
    const Tensor x(*device, from, {kRows, kColumns}, MemoryCategory::workspace);
    fill_zero(*device, x);
    for (const DType to : {DType::e4m3, DType::e5m2}) {
      const Tensor codes(*device, to, {kRows, kColumns}, MemoryCategory::workspace);
      const QuantizedView out = {.codes = codes,
                                 .codes_transposed = {},
                                 .scale = scale.view().as<float>(),
                                 .scale_inv = scale.view().as<float>() + 1,
                                 .format = plain(to)};
      const double seconds = median_seconds(
          [&] {
            ops::quantize(device->stream(), x, out, scale.view().as<float>() + 2, nullptr);
            device->synchronize();
          },
          options.seconds / 4);
      const double elements = static_cast<double>(kRows * kColumns);
      results.push_back({{"from", name_of(from)},
                         {"to", name_of(to)},
                         {"gelements_per_second", elements / seconds / 1e9},
                         {"gbytes_per_second",
                          elements * static_cast<double>(size_of(from) + 1) / seconds / 1e9}});
    }
  }
  return {{"bench", "cast"}, {"threads", threads}, {"results", results}};
}

Json bench_attention(const BenchOptions& options) {
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  if (options.heads % options.kv_heads != 0 || options.head_dim > ops::kMaxHeadDim) {
    throw ConfigError(fmt::format(
        "--heads must be a multiple of --kv-heads, and --head-dim at most {}", ops::kMaxHeadDim));
  }
  const ops::AttentionShape shape = {
      .batch = options.batch,
      .query_length = options.seq_length,
      .key_length = options.seq_length,
      .heads = options.heads,
      .kv_heads = options.kv_heads,
      .head_dim = options.head_dim,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(options.head_dim)))};
  const AttentionRates rates = attention_rates(*device, shape, DType::bf16, options.seconds / 2);
  return {{"bench", "attention"},
          {"threads", threads},
          {"batch", shape.batch},
          {"seq_length", shape.query_length},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"forward_seconds", rates.forward_seconds},
          {"forward_gflops", rates.forward_flops / 1e9},
          {"backward_seconds", rates.backward_seconds},
          {"backward_gflops", rates.backward_flops / 1e9}};
}

Json bench_optimizer_formats(const BenchOptions& options) {
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  OptimizerSimulation simulation;
  simulation.beta2 = options.beta2;
  simulation.steps = options.steps;
  if (options.beta2 >= 1.0 || options.steps < simulation.compared) {
    throw ConfigError(
        fmt::format("--beta2 must be below 1, and --steps at least {}", simulation.compared));
  }
  Json results = Json::array();
  for (const OptimizerFormatError& row : optimizer_format_errors(*device, simulation)) {
    results.push_back({{"moment1", row.moment1},
                       {"moment2", row.moment2},
                       {"bytes_per_parameter", row.bytes_per_parameter},
                       {"error", row.error}});
  }
  return {{"bench", "optimizer-formats"},
          {"beta2", simulation.beta2},
          {"steps", simulation.steps},
          {"results", results}};
}

/// Of data without and with rows a hundred thousand times as large as the others.
Json bench_gemm_error(const BenchOptions& options) {
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  Json results = Json::array();
  for (const std::string& plan : plan_names()) {
    Json row = {{"plan", plan}};
    for (const int64_t contracted : {4096, 16384}) {
      for (const double outliers : {1.0, 1e5}) {
        GemmErrorCase setting;
        setting.contracted = contracted;
        setting.outliers = outliers;
        row[fmt::format("K{}{}", contracted, outliers > 1.0 ? " outliers" : "")] =
            gemm_error(*device, plan, setting);
      }
    }
    results.push_back(std::move(row));
  }
  return {{"bench", "gemm-error"}, {"results", results}};
}

/// "key value" lines; arrays as one line per entry.
void print_text(const Json& json) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_array()) {
      for (const Json& entry : value) {
        std::string line;
        for (const auto& [name, cell] : entry.items()) {
          line += fmt::format("  {} {}", name,
                              cell.is_number_float() ? fmt::format("{:.3g}", cell.get<double>())
                              : cell.is_string()     ? cell.get<std::string>()
                                                     : cell.dump());
        }
        fmt::print("{}\n", line);
      }
    } else if (value.is_object()) {
      fmt::print("{}\n", key);
      for (const auto& [name, share] : value.items()) {
        fmt::print("  {:<24}{:5.1f} %\n", name, 100.0 * share.get<double>());
      }
    } else {
      fmt::print("{:<24}{}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

void add_part(Arguments parent, Action& action, const std::shared_ptr<BenchOptions>& options,
              const char* name, const char* help, Json (*bench)(const BenchOptions&)) {
  Arguments part = parent.part(name, help);
  part.flag("--json", options->json, "As JSON");
  part.option("--device", options->device, "cpu, cuda or auto");
  part.option("--threads", options->threads, 0, "0: all cores");
  if (std::string(name) != "optimizer-formats" && std::string(name) != "gemm-error") {
    part.option("--seconds", options->seconds, 1e-3, "Time to measure for");
  }
  if (std::string(name) == "step" || std::string(name) == "gemm") {
    part.flag("--tune", options->tune, "On a GPU, time each product's algorithms first");
  }
  if (std::string(name) == "step") {
    part.option("--preset", options->preset, "Model preset; `fp8train config list`");
    part.option("--plan", options->plan, "Precision row");
    part.option("--micro-batch-size", options->micro_batch_size, 1, "Sequences of a micro-batch");
    part.option("--seq-length", options->seq_length, 1, "Tokens of a sequence");
    part.option("--accumulation", options->accumulation, 1, "Micro-batches of a step");
    part.option("--vocabulary", options->vocabulary, 1, "For presets without one");
    part.option("--layers", options->layers, 0, "0: the preset's");
  }
  if (std::string(name) == "attention") {
    part.option("--batch", options->batch, 1, "Sequences");
    part.option("--seq-length", options->seq_length, 1, "Tokens of a sequence");
    part.option("--heads", options->heads, 1, "Of the queries");
    part.option("--kv-heads", options->kv_heads, 1, "Of keys and values");
    part.option("--head-dim", options->head_dim, 1, "Elements of a head");
  }
  if (std::string(name) == "optimizer-formats") {
    part.option("--beta2", options->beta2, 1e-3, "Decay of the second moment");
    part.option("--steps", options->steps, 1, "Of the simulation; the last 20 are compared");
  }
  if (std::string(name) == "gemm") {
    part.option("--sizes", options->sizes, "Square sizes, with commas");
  }
  part.run(action, [options, bench] {
    const Json json = bench(*options);
    if (options->json) {
      fmt::print("{}\n", json.dump(1));
    } else {
      print_text(json);
    }
    return 0;
  });
}

}  // namespace

void add_bench(Arguments verb, Action& action) {
  const auto options = std::make_shared<BenchOptions>();
  add_part(verb, action, options, "step", "A whole training step", bench_step);
  add_part(verb, action, options, "gemm", "Matrix products by operand type", bench_gemm);
  add_part(verb, action, options, "attention", "Causal attention in bf16", bench_attention);
  add_part(verb, action, options, "cast", "FP8 casts with amax", bench_cast);
  add_part(verb, action, options, "gemm-error",
           "Error of a product in the formats of every row against fp64", bench_gemm_error);
  add_part(verb, action, options, "optimizer-formats",
           "Error of AdamW's update by the formats of its moments", bench_optimizer_formats);
}

}  // namespace fp8train
