// fp8train bench: steps, GEMMs, attention and casts on this machine, and the errors of formats.
// Rates are medians; a step is compared with the GEMM ceiling measured in the same run.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench_attention.h"
#include "bench_cast.h"
#include "bench_gemm.h"
#include "bench_gemm_error.h"
#include "bench_optimizer_formats.h"
#include "bench_products.h"
#include "bench_step.h"
#include "bench_step_model.h"
#include "comm/backends.h"
#include "commands.h"
#include "model/decoder.h"
#include "numeric/cpu_isa.h"
#include "ops/attention/attention.h"
#include "train/rank_device.h"
#include "train/session.h"
#include "train/threads.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  bool json = false, tune = false;
  std::string device = "auto";
  int64_t threads = 0;
  double seconds = 3.0;
  StepBench step;
  std::string sizes, modes;
  int64_t rows = 0, columns = 0, tokens = 8192;
  int64_t batch = 4, heads = 8, kv_heads = 8, head_dim = 64;
  bool deterministic = false;
  double beta2 = 0.95;
  int64_t steps = 300;
};

std::unique_ptr<Device> open_device(const BenchOptions& options, int64_t& threads) {
  threads = configure_threads(options.threads);
  std::string reason;
  return choose_device(device_choice_named(options.device), options.tune, reason);
}

/// Null on all ranks but the first.
Json bench_step(const BenchOptions& options) {
  if (is_modeled_device(options.device)) {
    return step_model_report(options.device, options.step);
  }
  const std::unique_ptr<Communicator> host = make_communicator({});
  const int64_t threads = configure_threads(options.threads);
  Settings settings;
  settings.device = device_choice_named(options.device);
  settings.gemm_tuning = options.tune;
  const RankDevice place = take_device(settings, *host);
  Device* const device = place.device.get();
  Communicator* const comm = place.comm == nullptr ? host.get() : place.comm.get();
  const StepRates rates = step_rates(*device, *comm, options.step, options.seconds);
  if (comm->rank() != 0) {
    return nullptr;
  }
  Json shares;
  for (const auto& [name, share] : rates.time_shares) {
    shares[name] = share;
  }
  Json report = {{"bench", "step"},
                 {"preset", options.step.preset},
                 {"plan", options.step.plan},
                 {"set", options.step.sets},
                 {"micro_batch_size", options.step.micro_batch_size},
                 {"seq_length", options.step.seq_length},
                 {"ranks", comm->size()},
                 {"zero_stage", options.step.zero_stage},
                 {"bucket_mb", options.step.bucket_mb},
                 {"wire_bytes_within_node", rates.sent.within_node},
                 {"wire_bytes_between_nodes", rates.sent.between_nodes},
                 {"threads", threads},
                 {"isa", name_of(cpu_isa())},
                 {"gemm_engine", rates.gemm_engine},
                 {"attention", ops::attention_kernels(device->stream())},
                 {"seconds_per_step", rates.seconds},
                 {"tokens_per_second", rates.tokens * comm->size() / rates.seconds},
                 {"gflops", rates.flops / rates.seconds / 1e9},
                 {"gemm_ceiling_gflops", rates.ceiling / 1e9},
                 {"fraction_of_ceiling", rates.flops / rates.seconds / rates.ceiling},
                 {"memory_bytes", device->ledger().peak()},
                 {"forward_seconds", rates.times.forward},
                 {"head_seconds", rates.times.head},
                 {"backward_seconds", rates.times.backward},
                 {"update_seconds", rates.times.update}};
  if (comm->size() > 1) {
    const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
    const StepTimes& times = rates.times;
    report["exchange_seconds"] = times.exchange;
    report["exchange_in_backward"] = share(times.exchange_in_backward, times.exchange);
    report["exchange_waited_seconds"] = times.exchange_waited;
    if (times.messages > 0) {  // not known where they follow a stream of the device
      report["messages_seconds"] = times.messages;
      report["messages_in_backward"] = share(times.messages_in_backward, times.messages);
    }
  }
  report["time_shares"] = shares;
  return report;
}

Json bench_gemm(const BenchOptions& options) {
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  const bool gpu = device->kind() == DeviceKind::cuda;
  const std::vector<GemmShape> shapes = parse_gemm_shapes(!options.sizes.empty() ? options.sizes
                                                          : gpu                  ? "4096,8192"
                                                                                 : "256,512,1024");
  Json results = Json::array();
  for (const GemmResult& result : gemm_results(*device, shapes, options.seconds / 12)) {
    const GemmShape& shape = result.shape;
    results.push_back({{"shape", fmt::format("{}x{}x{}", shape.m, shape.n, shape.k)},
                       {"operands", result.operands},
                       {"engine", result.engine},
                       {"gflops", result.alone / 1e9},
                       {"gflops_with_casts", result.with_casts / 1e9},
                       {"of_bf16", result.of_bf16},
                       {"share_of_ceiling", result.share_of_ceiling}});
    if (!result.dequantized_because.empty()) {
      results.back()["dequantized"] = result.dequantized_because;
    }
  }
  return {{"bench", "gemm"}, {"threads", threads}, {"results", results}};
}

Json bench_products(const BenchOptions& options) {
  int64_t threads = 0;
  const std::vector<ProductMode> modes = parse_product_modes(options.modes);
  const std::vector<LinearSite> sites = linear_sites(model_of(options.step));
  const std::unique_ptr<Device> device = open_device(options, threads);
  Json results = Json::array();
  for (const ProductRate& rate :
       product_rates(*device, sites, options.tokens, modes, options.seconds / 30)) {
    Json result = {{"layer", rate.layer},
                   {"product", rate.product},
                   {"shape", fmt::format("{}x{}x{}", rate.shape.m, rate.shape.n, rate.shape.k)},
                   {"operands", rate.operands},
                   {"result", rate.result},
                   {"fast_accumulate", rate.fast_accumulate}};
    if (!rate.error.empty()) {
      result["error"] = rate.error;
    } else if (!rate.dequantized_because.empty()) {
      result["dequantized"] = rate.dequantized_because;
    } else {
      result["gflops"] = rate.flops_per_second / 1e9;
    }
    results.push_back(std::move(result));
  }
  return {{"bench", "products"},
          {"preset", options.step.preset},
          {"tokens", options.tokens},
          {"threads", threads},
          {"results", results}};
}

Json bench_cast(const BenchOptions& options) {
  int64_t threads = 0;
  const std::unique_ptr<Device> device = open_device(options, threads);
  // Beyond the second-level cache of a GPU and the third-level one of a CPU.
  const int64_t rows = options.rows != 0                    ? options.rows
                       : device->kind() == DeviceKind::cuda ? 8192
                                                            : 2048;
  const int64_t columns = options.columns != 0 ? options.columns : 8192;
  const CastRates rates = cast_rates(*device, rows, columns, options.seconds / 24);
  Json results = Json::array();
  for (const CastRate& rate : rates.casts) {
    results.push_back({{"from", name_of(rate.from)},
                       {"to", name_of(rate.to)},
                       {"scales", rate.scales},
                       {"orientations", rate.both_orientations ? 2 : 1},
                       {"gelements_per_second", rate.elements_per_second / 1e9},
                       {"gbytes_per_second", rate.bytes_per_second / 1e9},
                       {"share_of_copy", rate.bytes_per_second / rates.copy_bytes_per_second}});
  }
  return {{"bench", "cast"},
          {"threads", threads},
          {"rows", rows},
          {"columns", columns},
          {"copy_gbytes_per_second", rates.copy_bytes_per_second / 1e9},
          {"results", results}};
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
      .query_length = options.step.seq_length,
      .key_length = options.step.seq_length,
      .heads = options.heads,
      .kv_heads = options.kv_heads,
      .head_dim = options.head_dim,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(options.head_dim))),
      .deterministic = options.deterministic};
  const AttentionRates rates = attention_rates(*device, shape, DType::bf16, options.seconds / 2);
  return {{"bench", "attention"},
          {"kernels", ops::attention_kernels(device->stream())},
          {"threads", threads},
          {"batch", shape.batch},
          {"seq_length", shape.query_length},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"deterministic", shape.deterministic},
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
  if (json.contains("operations")) {
    return print_step_model(json);
  }
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
      fmt::print("{:<26}{}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

void add_part(Arguments parent, Action& action, const std::shared_ptr<BenchOptions>& options,
              const char* name, const char* help, Json (*bench)(const BenchOptions&)) {
  Arguments part = parent.part(name, help);
  part.flag("--json", options->json, "As JSON");
  part.option("--device", options->device,
              std::string(name) == "step"
                  ? "cpu, cuda or auto; meta:h200 and the like: a model of the step on that GPU"
                  : "cpu, cuda or auto");
  part.option("--threads", options->threads, 0, "0: all cores");
  if (std::string(name) != "optimizer-formats" && std::string(name) != "gemm-error") {
    part.option("--seconds", options->seconds, 1e-3, "Time to measure for");
  }
  if (std::string(name) == "step" || std::string(name) == "gemm" ||
      std::string(name) == "products") {
    part.flag("--tune", options->tune, "On a GPU, time each product's algorithms first");
  }
  if (std::string(name) == "step") {
    part.option("--preset", options->step.preset, "Model preset; `fp8train config list`");
    part.option("--plan", options->step.plan, "Precision plan");
    part.list("--set", options->step.sets,
              "precision.KEY=v or fp8.KEY=v: change the plan (repeatable)");
    part.option("--micro-batch-size", options->step.micro_batch_size, 1,
                "Sequences of a micro-batch");
    part.option("--seq-length", options->step.seq_length, 1, "Tokens of a sequence");
    part.option("--accumulation", options->step.accumulation, 1, "Micro-batches of a step");
    part.option("--vocabulary", options->step.vocabulary, 0, "0: the preset's, or 65");
    part.option("--layers", options->step.layers, 0, "0: the preset's");
    part.option("--zero-stage", options->step.zero_stage, 0, "With several ranks: what they share");
    part.option("--bucket-mb", options->step.bucket_mb, 1,
                "MiB of gradients that ranks exchange at a time");
    part.option("--timeline", options->step.timeline,
                "Write the last steps of all ranks here, for ui.perfetto.dev");
    part.flag("--quick-weights", options->step.quick_weights,
              "Weights are a few drawn values, repeated: a large model starts in seconds");
  }
  if (std::string(name) == "products") {
    part.option("--preset", options->step.preset, "Model preset; `fp8train config list`");
    part.option("--vocabulary", options->step.vocabulary, 0, "0: the preset's, or 65");
    part.option("--tokens", options->tokens, 1, "Of a micro-batch");
    part.option("--modes", options->modes,
                "Of bf16, tensor, row, block and mx, with commas; default all");
  }
  if (std::string(name) == "attention") {
    part.option("--batch", options->batch, 1, "Sequences");
    part.option("--seq-length", options->step.seq_length, 1, "Tokens of a sequence");
    part.option("--heads", options->heads, 1, "Of the queries");
    part.option("--kv-heads", options->kv_heads, 1, "Of keys and values");
    part.option("--head-dim", options->head_dim, 1, "Elements of a head");
    part.flag("--deterministic", options->deterministic,
              "On a GPU with cuDNN, its deterministic backward pass");
  }
  if (std::string(name) == "optimizer-formats") {
    part.option("--beta2", options->beta2, 1e-3, "Decay of the second moment");
    part.option("--steps", options->steps, 1, "Of the simulation; the last 20 are compared");
  }
  if (std::string(name) == "gemm") {
    part.option("--sizes", options->sizes, "Square sizes, or shapes MxNxK, with commas");
  }
  if (std::string(name) == "cast") {
    part.option("--rows", options->rows, 0, "Of the matrix; 0: by the device");
    part.option("--columns", options->columns, 0, "Of the matrix; 0: by the device");
  }
  part.run(action, [options, bench] {
    const Json json = bench(*options);
    if (options->json && !json.is_null()) {
      fmt::print("{}\n", json.dump(1));
    } else if (!json.is_null()) {
      print_text(json);
    }
    return 0;
  });
}

}  // namespace

void add_bench(Arguments command, Action& action) {
  const auto options = std::make_shared<BenchOptions>();
  add_part(command, action, options, "step", "A whole training step", bench_step);
  add_part(command, action, options, "gemm", "Products in FP8, with their casts, against bf16",
           bench_gemm);
  add_part(command, action, options, "products",
           "The GEMMs of a model's layers in each type, accumulation and scale mode",
           bench_products);
  add_part(command, action, options, "attention", "Causal attention in bf16", bench_attention);
  add_part(command, action, options, "cast", "FP8 casts against the bandwidth of a copy",
           bench_cast);
  add_part(command, action, options, "gemm-error",
           "Error of a product in the formats of every plan against fp64", bench_gemm_error);
  add_part(command, action, options, "optimizer-formats",
           "Error of AdamW's update by the formats of its moments", bench_optimizer_formats);
}

}  // namespace fp8train
