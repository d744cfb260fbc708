// fp8train bench: steps, GEMMs, attention and casts on this machine, and the errors of formats.
// Rates are medians; a step is compared with the GEMM ceiling measured in the same run.

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

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

/// Prints reports as they come: one alone, or several as a list of JSON or as blocks of text.
class ReportPrinter {
 public:
  explicit ReportPrinter(const BenchOptions& options)
      : as_json_(options.json), is_list_(options.step.plan.find(',') != std::string::npos) {}
  /// Ends a list also if an error comes after some of its reports.
  ~ReportPrinter() {
    if (as_json_ && count_ > 0) {
      std::fputs(is_list_ ? "\n]\n" : "\n", stdout);
    }
  }
  ReportPrinter(const ReportPrinter&) = delete;
  ReportPrinter& operator=(const ReportPrinter&) = delete;

  void add(const Json& report) {
    if (as_json_) {
      fmt::print("{}{}", !is_list_ ? "" : count_ == 0 ? "[\n" : ",\n", report.dump(1));
    } else {
      fmt::print("{}", count_ == 0 ? "" : "\n");
      print_text(report);
    }
    ++count_;
    std::fflush(stdout);  // a process that is ended keeps what it measured
  }

 private:
  bool as_json_, is_list_;
  int count_ = 0;
};

Json measure(const BenchPart& part, const BenchOptions& options) {
  const int64_t threads = configure_threads(options.threads);
  std::string reason;
  const std::unique_ptr<Device> device =
      choose_device(device_choice_named(options.device), options.tune, reason);
  Json report = {{"bench", part.name}, {"device", device->description()}, {"threads", threads}};
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
    ReportPrinter printer(*options);
    int code = 0;
    if (bench.run == nullptr) {
      const Json report = measure(bench, *options);
      printer.add(report);
      code = report.value("wrong", 0) > 0 ? 1 : 0;
    } else {
      code = bench.run(*options, [&](const Json& report) { printer.add(report); });
    }
    return code;
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
