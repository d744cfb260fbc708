// fp8train bench: steps, GEMMs, attention and casts on this machine, and the errors of formats.
// Rates are medians; a step is compared with the GEMM ceiling measured in the same run.

#include <fmt/format.h>

#include <memory>

#include "bench/parts.h"
#include "bench/step_model.h"
#include "commands.h"
#include "train/session.h"
#include "train/threads.h"

namespace fp8train {
namespace {

/// A value for reading: JSON has all digits.
std::string text_of(const Json& value, int digits) {
  return value.is_number_float() ? fmt::format("{:.{}g}", value.get<double>(), digits)
         : value.is_string()     ? value.get<std::string>()
                                 : value.dump();
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
          line += fmt::format("  {} {}", name, text_of(cell, 3));
        }
        fmt::print("{}\n", line);
      }
    } else if (value.is_object()) {
      fmt::print("{}\n", key);
      for (const auto& [name, share] : value.items()) {
        fmt::print("  {:<24}{:5.1f} %\n", name, 100.0 * share.get<double>());
      }
    } else if (const std::string text = text_of(value, 6); !text.empty()) {
      fmt::print("{:<26}{}\n", key, text);
    }
  }
}

Json run_part(const BenchPart& part, const BenchOptions& options) {
  if (part.run != nullptr) {
    return part.run(options);
  }
  Json report = {{"bench", part.name}, {"threads", configure_threads(options.threads)}};
  std::string reason;
  const std::unique_ptr<Device> device =
      choose_device(device_choice_named(options.device), options.tune, reason);
  report.update(part.measure(*device, options));
  return report;
}

void add_part(Arguments parent, Action& action, const std::shared_ptr<BenchOptions>& options,
              const BenchPart& bench) {
  Arguments part = parent.part(bench.name, bench.help);
  part.flag("--json", options->json, "As JSON");
  part.option("--device", options->device, bench.device_help);
  part.option("--threads", options->threads, 0, "0: all cores");
  if (bench.is_timed) {
    part.option("--seconds", options->seconds, 1e-3, "Time to measure for");
  }
  if (bench.is_tuned) {
    part.flag("--tune", options->tune, "On a GPU, time each product's algorithms first");
  }
  if (bench.add_options != nullptr) {
    bench.add_options(part, *options);
  }
  part.run(action, [options, &bench] {
    const Json json = run_part(bench, *options);
    if (options->json && !json.is_null()) {
      fmt::print("{}\n", json.dump(1));
    } else if (!json.is_null()) {
      print_text(json);
    }
    return json.is_object() && json.value("wrong", 0) > 0 ? 1 : 0;
  });
}

}  // namespace

void add_bench(Arguments command, Action& action) {
  const auto options = std::make_shared<BenchOptions>();
  for (const BenchPart* part : {&kStepBench, &kGemmBench, &kProductsBench, &kAttentionBench,
                                &kCastBench, &kGemmErrorBench, &kOptimizerFormatsBench}) {
    add_part(command, action, options, *part);
  }
}

}  // namespace fp8train
