#include "bench/step_model.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"
#include "base/quantities.h"
#include "base/screen.h"
#include "base/text.h"
#include "device/gpu_kinds.h"
#include "engine/dry_run.h"
#include "engine/measured_products.h"
#include "engine/roofline.h"

namespace fp8train {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;

/// Finds the types of operands by their text; nothing if it is unknown.
std::optional<Fp8Product> operands_named(const std::string& text) {
  if (text == "bf16") {
    return Fp8Product{.a = DType::bf16, .b = DType::bf16};
  }
  for (size_t scales = 0; scales < kScalePairs; ++scales) {
    for (const DType a : ProductCodes::kTypes) {
      for (const DType b : ProductCodes::kTypes) {
        const Fp8Product product = {.scales = static_cast<ScalePair>(scales), .a = a, .b = b};
        if (operands_text(product) == text) {
          return product;
        }
      }
    }
  }
  return std::nullopt;
}

/// Reads an entry of "results". Throws ConfigError.
OpProduct product_of(const Json& entry) {
  OpProduct product;
  const auto shape = entry.at("shape").get<std::string>();
  const auto operands = entry.at("operands").get<std::string>();
  const std::optional<Fp8Product> type = operands_named(operands);
  const auto result = entry.at("result").get<std::string>();
  const bool is_f32 = result == "fp32" || result == "fp32 +=";
  long long m = 0, n = 0, k = 0;
  int read = 0;
  const bool has_shape = std::sscanf(shape.c_str(), "%lldx%lldx%lld%n", &m, &n, &k, &read) == 3 &&
                         static_cast<size_t>(read) == shape.size() && m > 0 && n > 0 && k > 0;
  if (!type || !has_shape || (!is_f32 && result != "bf16")) {
    throw ConfigError(
        fmt::format("unknown product '{}' of shape '{}' to '{}'", operands, shape, result));
  }
  product = {.m = m, .n = n, .k = k, .type = *type, .adds = result == "fp32 +="};
  product.type.c = is_f32 ? DType::f32 : DType::bf16;
  product.type.fast_accumulate =
      entry.at("fast_accumulate").get<bool>() && has_fast_accumulation(type->scales);
  return product;
}

MeasuredProducts products_of(const Json& report, const GpuKind& gpu) {
  const auto device = report.at("device").get<std::string>();
  if (gpu_kind_in(device) != &gpu) {
    throw ConfigError(fmt::format("it was measured on '{}', not on a {}", device, gpu.name));
  }
  MeasuredProducts products;
  size_t count = 0;
  for (const Json& entry : report.at("results")) {
    const double gflops = entry.value("gflops", 0.0);
    if (gflops > 0) {
      products.add(product_of(entry), 1e9 * gflops);
      count += 1;
    }
  }
  if (count == 0) {
    throw ConfigError("it has no rates");
  }
  return products;
}

/// Reads the rates of products that `fp8train bench products --json` measured; those that it calls
/// refused or dequantized are left out. Throws ConfigError if the file cannot be read, is of
/// another GPU than `gpu`, or has no rates.
MeasuredProducts read_calibration(const std::string& path, const GpuKind& gpu) {
  try {
    return products_of(Json::parse(read_text_file(path, kMaxBytes)), gpu);
  } catch (const Json::exception& error) {
    throw ConfigError(
        fmt::format("--calibrate {}: not a report of `fp8train bench products "
                    "--json`: {}",
                    path, plain_json_error(error)));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("--calibrate {}: {}", path, error.what()));
  }
}

constexpr std::string_view kPrefix = "meta:";
constexpr const char* kNote =
    "A model, not a measurement: each operation that the step calls takes the longest of its "
    "bytes, "
    "its FLOPs and the instructions of its kernel (compiled for compute capability 9.0) at the "
    "assumed rates, and its launches.";

const GpuKind& modeled_gpu(const std::string& device) {
  const std::string name = device.substr(kPrefix.size());
  if (const GpuKind* gpu = find_gpu_kind(name)) {
    return *gpu;
  }
  throw ConfigError("--device: unknown GPU '" + name + "' (expected " +
                    joined(gpu_kinds(), &GpuKind::name) + ")");
}

/// "GEMMs in bf16: 771 TFLOP/s, 78 % of 989".
Json rates_of(const GpuKind& gpu) {
  const AchievedShares shares = achieved_shares(gpu);
  const auto rate = [](double stated, double share) {
    return Json{{"stated", stated}, {"share", share}, {"assumed", stated * share}};
  };
  return {{"gemm_16bit_tflops", rate(gpu.tera_flops_16bit, shares.bits16)},
          {"gemm_fp8_fast_accumulation_tflops", rate(gpu.tera_flops_8bit, shares.fp8_fast)},
          {"gemm_fp8_tflops", rate(gpu.tera_flops_8bit, shares.fp8)},
          {"gemm_fp32_tflops", rate(gpu.tera_flops_f32, shares.f32)},
          {"attention_forward_tflops", rate(gpu.tera_flops_16bit, shares.attention_forward)},
          {"attention_backward_tflops", rate(gpu.tera_flops_16bit, shares.attention_backward)},
          {"memory_gbytes_per_second", rate(gpu.memory_rate, shares.memory)},
          {"instructions_tera_lanes_per_second",
           rate(gpu.warp_instruction_rate() * 32 / 1e12, shares.instructions)},
          {"launch_microseconds", shares.launch_seconds * 1e6}};
}

Json figures_of(const OpTotal& total) {
  return {{"seconds", total.seconds},
          {"launches", total.launches},
          {"bytes", total.bytes},
          {"flops", total.flops}};
}

Json totals_of(const StepModel& model, double tokens) {
  Json parts = Json::object();
  for (const auto& [part, name] : kStepParts) {
    parts[std::string(name)] = model.seconds_of(part);
  }
  Json layer = figures_of(model.layer);
  layer.erase("flops");
  return {
      {"seconds_per_step", model.step.seconds}, {"tokens_per_second", tokens / model.step.seconds},
      {"step", figures_of(model.step)},         {"micro_batch", figures_of(model.micro_batch)},
      {"element_wise_per_layer", layer},        {"seconds_by_part", parts}};
}

Json operations_of(const StepModel& model) {
  Json operations = Json::array();
  for (const OpTotal& total : model.operations) {
    operations.push_back({{"part", name_of(total.part)},
                          {"operation", total.name},
                          {"calls", total.calls},
                          {"launches", total.launches},
                          {"bytes", total.bytes},
                          {"flops", total.flops},
                          {"seconds", total.seconds},
                          {"bound", name_of(total.bound)}});
  }
  return operations;
}

/// How many calls of GEMMs take their rate from where.
Json calibration_of(const std::string& path, const StepModel& model) {
  const auto& gemms = model.gemms_by_source;
  return {{"file", path},
          {"gemms_by_shape", gemms[static_cast<size_t>(RateSource::shape)]},
          {"gemms_by_kind", gemms[static_cast<size_t>(RateSource::kind)]},
          {"gemms_assumed", gemms[static_cast<size_t>(RateSource::assumed)]}};
}

double number(const Json& json, const char* key) {
  return json.at(key).get<double>();
}

void add_operation(std::vector<TableColumn>& table, const std::string& name, const Json& row,
                   double step_seconds) {
  const double seconds = number(row, "seconds");
  add_row(table, {"  " + name, row.contains("calls") ? row.at("calls").dump() : "",
                  row.at("launches").dump(), fmt::format("{:.3f}", number(row, "bytes") / 1e9),
                  fmt::format("{:.3f}", row.contains("flops") ? number(row, "flops") / 1e12 : 0.0),
                  fmt::format("{:.3f}", seconds * 1e3),
                  fmt::format("{:.1f}", 100.0 * seconds / step_seconds),
                  row.contains("bound") ? row.at("bound").get<std::string>() : ""});
}

void print_operations(const Json& report) {
  std::vector<TableColumn> table = {{"operation"}, {"calls", 1}, {"launches", 3}, {"GB"},
                                    {"TFLOP", 2},  {"ms"},       {"%"},           {"bound by"}};
  const auto add_part = [&](const std::string& name) {
    add_row(table, {name, "", "", "", "", "", "", ""});
  };
  const double step_seconds = number(report, "seconds_per_step");
  std::string part;
  for (const Json& row : report.at("operations")) {
    if (row.at("part") != part) {
      part = row.at("part").get<std::string>();
      add_part(part);
    }
    add_operation(table, row.at("operation").get<std::string>(), row, step_seconds);
  }
  add_part("totals");
  add_operation(table, "step", report.at("step"), step_seconds);
  add_operation(table, "micro-batch", report.at("micro_batch"), step_seconds);
  add_operation(table, "element-wise, per layer", report.at("element_wise_per_layer"),
                step_seconds);
  print_fitted("{}", table_text(std::move(table), terminal_columns(stdout)));
}

void print_rates(const Json& rates) {
  print_fitted("assumed rates\n");
  for (const auto& [name, rate] : rates.items()) {
    if (rate.is_object()) {
      print_fitted("  {:<36}{:>8.0f}, {:.0f} % of the stated {:.0f}\n", name,
                   number(rate, "assumed"), 100.0 * number(rate, "share"), number(rate, "stated"));
    } else {
      print_fitted("  {:<36}{:>8}\n", name, rate.dump());
    }
  }
}

}  // namespace

bool is_modeled_device(const std::string& device) {
  return device.rfind(kPrefix, 0) == 0;
}

Json step_model_report(const BenchOptions& options) {
  const StepBench& bench = options.step;
  const GpuKind& gpu = modeled_gpu(options.device);
  if (!bench.timeline.empty() || bench.zero_stage > 0) {
    throw ConfigError("--device " + options.device +
                      ": the model is of one GPU; leave out --timeline and --zero-stage");
  }
  StepRates rates(gpu);
  if (!options.calibration.empty()) {
    rates.measured = read_calibration(options.calibration, gpu);
  }
  StepBench in_bf16 = bench;
  in_bf16.plan = "bf16";
  in_bf16.sets.clear();
  const auto modeled = [&](const EngineSettings& settings, size_t& memory_bytes) {
    const DryRunStep step = logged_step(settings, traits_of(gpu));
    memory_bytes = step.memory.total();
    return model_step(step.calls, settings, rates);
  };
  size_t bytes = 0;
  size_t bf16_bytes = 0;
  const EngineSettings settings = engine_settings_of(bench);
  const StepModel model = modeled(settings, bytes);
  const StepModel bf16 = modeled(engine_settings_of(in_bf16), bf16_bytes);
  const auto tokens = static_cast<double>(bench.settings.tokens());
  Json report = {{"bench", "step"},
                 {"device", options.device},
                 {"note", kNote},
                 {"preset", bench.preset},
                 {"layers", settings.model.num_hidden_layers},
                 {"vocabulary", settings.model.vocab_size},
                 {"plan", bench.plan},
                 {"set", bench.sets},
                 {"micro_batch_size", bench.settings.micro_batch_size},
                 {"seq_length", bench.settings.seq_length},
                 {"accumulation", bench.settings.gradient_accumulation_steps},
                 {"assumed_rates", rates_of(gpu)}};
  if (!options.calibration.empty()) {
    report["calibration"] = calibration_of(options.calibration, model);
  }
  report["memory_bytes"] = bytes;
  report.update(totals_of(model, tokens));
  report["operations"] = operations_of(model);
  report["bf16"] = totals_of(bf16, tokens);
  report["bf16"]["memory_bytes"] = bf16_bytes;
  report["of_bf16"] = bf16.step.seconds / model.step.seconds;
  return report;
}

void print_step_model(const Json& report) {
  print_fitted("{}\n", report.at("note").get<std::string>());
  print_rates(report.at("assumed_rates"));
  if (report.contains("calibration")) {
    const Json& gemms = report.at("calibration");
    print_fitted(
        "rates of GEMMs from {}: {} calls by shape, {} by the mean of their kind, {} assumed\n",
        gemms.at("file").get<std::string>(), gemms.at("gemms_by_shape").dump(),
        gemms.at("gemms_by_kind").dump(), gemms.at("gemms_assumed").dump());
  }
  print_fitted("\n{}, {} layers, vocabulary {}, plan {}, {} x {} x {} tokens, on {}\n\n",
               report.at("preset").get<std::string>(), report.at("layers").dump(),
               report.at("vocabulary").dump(), report.at("plan").get<std::string>(),
               report.at("accumulation").dump(), report.at("micro_batch_size").dump(),
               report.at("seq_length").dump(), report.at("device").get<std::string>());
  print_operations(report);
  const Json& bf16 = report.at("bf16");
  print_fitted(
      "\n{:.1f} ms per step, {:.0f} tokens/s; in bf16 {:.1f} ms, {:.0f} tokens/s: {:.2f} x\n"
      "memory {}; in bf16 {}\n",
      1e3 * number(report, "seconds_per_step"), number(report, "tokens_per_second"),
      1e3 * number(bf16, "seconds_per_step"), number(bf16, "tokens_per_second"),
      number(report, "of_bf16"), describe_bytes(number(report, "memory_bytes")),
      describe_bytes(number(bf16, "memory_bytes")));
}

}  // namespace fp8train
