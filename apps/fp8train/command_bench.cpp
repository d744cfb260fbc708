// fp8train bench: steps, GEMMs, attention and casts on this machine.
// Rates are medians; a step is compared with the GEMM ceiling measured in the same run.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "base/screen.h"
#include "bench/parts.h"
#include "bench/step_model.h"
#include "commands.h"
#include "train/rank_device.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// A value for reading: JSON has all digits.
std::string text_of(const Json& value, int digits) {
  return value.is_number_float() ? fmt::format("{:.{}g}", value.get<double>(), digits)
         : value.is_string()     ? value.get<std::string>()
                                 : value.dump();
}

/// How a table shows a number of the JSON: times `factor`, with so many decimals.
struct ShownAs {
  const char* key;
  const char* title;
  int lost_first;  ///< TableColumn::lost_first
  double factor = 1;
  int decimals = -1;  ///< -1: three digits
};
constexpr ShownAs kShownAs[] = {{"engine", "engine", 3},
                                {"gflops", "GFLOP/s", 0, 1, 1},
                                {"gflops_with_casts", "with casts", 0, 1, 1},
                                {"of_bf16", "x bf16", 0, 1, 2},
                                {"share_of_ceiling", "ceiling %", 2, 100, 1},
                                {"dequantized", "dequantized because", 9},
                                {"orientations", "orientations", 1},
                                {"gelements_per_second", "Gelements/s", 0, 1, 3},
                                {"gbytes_per_second", "GB/s", 0, 1, 3},
                                {"share_of_copy", "of copy %", 0, 100, 1},
                                {"result", "result", 5},
                                {"fast_accumulate", "fast", 0}};

std::string text_of_number(const Json& value, const ShownAs& shown) {
  const bool is_scaled = value.is_number_float() && (shown.factor != 1 || shown.decimals >= 0);
  const double number = is_scaled ? shown.factor * value.get<double>() : 0;
  return !is_scaled           ? text_of(value, 3)
         : shown.decimals < 0 ? fmt::format("{:.3g}", number)
                              : fmt::format("{:.{}f}", number, shown.decimals);
}

/// A row for each entry, a column for each of their keys.
void print_entries(const Json& entries) {
  std::vector<TableColumn> table;
  std::vector<std::string> keys;
  for (const Json& entry : entries) {
    for (const auto& [key, value] : entry.items()) {
      if (std::ranges::find(keys, key) == keys.end()) {
        keys.push_back(key);
      }
    }
  }
  for (const std::string& key : keys) {
    const auto* const known = std::ranges::find(kShownAs, key, &ShownAs::key);
    const ShownAs shown =
        known == std::end(kShownAs) ? ShownAs{key.c_str(), key.c_str(), 0} : *known;
    TableColumn column = {shown.title, shown.lost_first};
    for (const Json& entry : entries) {
      column.texts.push_back(entry.contains(key) ? text_of_number(entry.at(key), shown) : "");
    }
    table.push_back(std::move(column));
  }
  if (!table.empty()) {
    print_fitted("{}", table_text(std::move(table), terminal_columns(stdout)));
  }
}

/// "key value" lines, and arrays as tables.
void print_report(const Json& json) {
  if (json.contains("operations")) {
    return print_step_model(json);
  }
  for (const auto& [key, value] : json.items()) {
    if (value.is_array()) {
      print_entries(value);
    } else if (value.is_object()) {
      print_fitted("{}\n", key);
      for (const auto& [name, share] : value.items()) {
        print_fitted("  {:<24}{:5.1f} %\n", name, 100.0 * share.get<double>());
      }
    } else if (const std::string text = text_of(value, 6); !text.empty()) {
      print_fitted("{:<26}{}\n", key, text);
    }
  }
}

/// Prints reports as they come: one alone, or several as a list of JSON or as blocks of text.
class ReportPrinter : NotCopied {
 public:
  explicit ReportPrinter(const BenchOptions& options)
      : as_json_(options.json), is_list_(options.step.plan.find(',') != std::string::npos) {}
  /// Ends a list also if an error comes after some of its reports.
  ~ReportPrinter() {
    if (as_json_ && count_ > 0) {
      std::fputs(is_list_ ? "\n]\n" : "\n", stdout);
    }
  }

  void add(const Json& report) {
    if (as_json_) {
      fmt::print("{}{}", !is_list_ ? "" : count_ == 0 ? "[\n" : ",\n", report.dump(1));
    } else {
      print_fitted("{}", count_ == 0 ? "" : "\n");
      print_report(report);
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
  Arguments part = parent.part(bench.name, bench.help, bench.example);
  part.flag("--json", options->json, "As JSON");
  part.option("--device", options->device, bench.device_help);
  part.option("--threads", options->threads, 0, "0: all cores");
  part.option("--seconds", options->seconds, 1e-3, "Time to measure for");
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
  for (const BenchPart* part :
       {&kStepBench, &kGemmBench, &kProductsBench, &kAttentionBench, &kCastBench}) {
    add_part(command, action, options, *part);
  }
}

}  // namespace fp8train
