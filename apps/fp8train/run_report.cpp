// fp8train report: runs as one HTML page.

#include "run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/math.h"
#include "base/screen.h"
#include "base/text.h"
#include "commands.h"
#include "io/checkpoint/run_directory.h"
#include "train/records/metric_list.h"

namespace fp8train {

extern const char* const kReportTemplate;  // report_template.html

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPoints = 1500;
constexpr size_t kMaxColumns = 60;
constexpr size_t kMaxText = size_t{1} << 20;

/// The values that are drawn for each tensor and step.
constexpr const char* kHealth[] = {"snr_db", "scale_exponent", "saturated_percent",
                                   "underflow_percent", "amax"};

/// Losses whose gaps to the first run are drawn.
constexpr std::string_view kCompared[] = {"loss", "val_loss"};
constexpr size_t kMaxGaps = 60;  ///< points of a curve of gaps, each a mean over neighbours

using Points = std::vector<std::pair<int64_t, double>>;

/// Calls `take` with each line but for one without a line break, which is being written.
void for_each_whole_line(const InputFile& file, const std::function<void(std::string_view)>& take) {
  constexpr uint64_t kBytesAtATime = uint64_t{1} << 20;
  std::string text;
  for (uint64_t offset = 0; offset < file.size();) {
    const size_t begun = text.size();
    const uint64_t bytes = std::min(file.size() - offset, kBytesAtATime);
    text.resize(begun + bytes);
    file.read(offset, text.data() + begun, bytes);
    offset += bytes;
    size_t begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
      take(std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
    }
    text.erase(0, begin);
  }
}

/// Calls `take` with each whole line of metrics.jsonl or tensors.jsonl, and returns how many are
/// left out because they have NUL bytes, which a power failure leaves.
size_t for_each_line(const std::filesystem::path& path,
                     const std::function<void(const Json&)>& take) {
  std::error_code failure;
  if (!std::filesystem::exists(path, failure)) {
    const std::vector<std::string> runs = runs_in(path.parent_path());
    throw DataError(
        runs.empty() ? fmt::format("{}: cannot be read; give folders of runs (their output_dir)",
                                   path.string())
                     : fmt::format("{} is not a run, but holds some; give those to be compared: {}",
                                   path.parent_path().string(), fmt::join(runs, " ")));
  }
  size_t number = 0;
  size_t damaged = 0;
  for_each_whole_line(InputFile(path), [&](std::string_view line) {
    ++number;
    if (line.find('\0') != std::string_view::npos) {
      ++damaged;
      return;
    }
    const Json object = Json::parse(line, nullptr, false);
    const auto step = object.is_object() ? object.find("step") : object.end();
    if (step == object.end() || !step->is_number_integer()) {
      throw DataError(fmt::format("{}:{}: not a line of metrics", path.string(), number));
    }
    take(object);
  });
  return damaged;
}

void warn_of_damaged(const std::filesystem::path& path, size_t lines) {
  if (lines > 0) {
    log_warning(fmt::format("{}: left out: {} with NUL bytes, which a power failure leaves",
                            path.string(), counted(static_cast<int64_t>(lines), "line")));
  }
}

/// [[step, value], ...], neighbours joined until there are few enough.
Json thinned(const Points& points) {
  const size_t together = ceil_div(points.size(), kMaxPoints);
  Json curve = Json::array();
  for (size_t begin = 0; begin < points.size(); begin += together) {
    const size_t end = std::min(begin + together, points.size());
    double sum = 0;
    for (size_t i = begin; i < end; ++i) {
      sum += points[i].second;
    }
    curve.push_back({points[end - 1].first, sum / static_cast<double>(end - begin)});
  }
  return curve;
}

/// The metrics that are drawn as curves over steps:
/// [{"key": .., "label": .., "unit": .., "drawn_where_zero": ..}, ...].
Json drawn_metrics() {
  Json drawn = Json::array();
  for (const Metric& metric : kMetrics) {
    if (!metric.label.empty()) {
      drawn.push_back({{"key", metric.key},
                       {"label", metric.label},
                       {"unit", metric.unit},
                       {"drawn_where_zero", metric.drawn_where_zero}});
    }
  }
  return drawn;
}

std::map<std::string_view, Points> points_of(const std::filesystem::path& metrics) {
  std::map<std::string_view, Points> curves;
  const size_t damaged = for_each_line(metrics, [&](const Json& line) {
    const auto step = line.at("step").get<int64_t>();
    for (const Metric& metric : kMetrics) {
      const auto value = line.find(std::string(metric.key));
      if (!metric.label.empty() && value != line.end() && value->is_number()) {
        curves[metric.key].emplace_back(step, value->get<double>());
      }
    }
  });
  warn_of_damaged(metrics, damaged);
  return curves;
}

/// {step: percent}: the run's mean over the first run's, over neighbouring steps that both have.
std::map<int64_t, double> gaps_between(const Points& first, const Points& run) {
  const std::map<int64_t, double> others(run.begin(), run.end());
  std::map<int64_t, double> gaps;
  const size_t together = ceil_div(first.size(), kMaxGaps);
  for (size_t begin = 0; begin < first.size(); begin += together) {
    const size_t end = std::min(begin + together, first.size());
    double of_first = 0;
    double of_run = 0;
    for (size_t i = begin; i < end; ++i) {
      if (const auto found = others.find(first[i].first); found != others.end()) {
        of_first += first[i].second;
        of_run += found->second;
      }
    }
    if (of_first != 0) {
      gaps[first[end - 1].first] = 100 * (of_run / of_first - 1);
    }
  }
  return gaps;
}

/// {step: percent}: the largest difference between the gaps of two runs of one plan.
std::map<int64_t, double> chance(const std::vector<std::map<int64_t, double>>& gaps,
                                 const std::vector<std::string>& plans) {
  std::map<int64_t, double> largest;
  for (size_t i = 0; i < gaps.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      for (const auto& [step, gap] : gaps[i]) {
        const auto other = gaps[j].find(step);
        if (!plans[i].empty() && plans[i] == plans[j] && other != gaps[j].end()) {
          largest[step] = std::max(largest[step], std::fabs(gap - other->second));
        }
      }
    }
  }
  return largest;
}

Json curve(const std::map<int64_t, double>& points) {
  Json all = Json::array();
  for (const auto& [step, value] : points) {
    all.push_back({step, value});
  }
  return all;
}

/// {"loss": {"curves": [a curve for each run], "chance": curve}, ...}; empty for a single run.
/// `losses`: of each run, in the order of kCompared.
Json gaps_of(const std::vector<std::vector<Points>>& losses,
             const std::vector<std::string>& plans) {
  Json all = Json::object();
  for (size_t loss = 0; loss < std::size(kCompared) && losses.size() > 1; ++loss) {
    std::vector<std::map<int64_t, double>> gaps;
    Json curves = Json::array();
    for (const std::vector<Points>& run : losses) {
      gaps.push_back(gaps_between(losses[0][loss], run[loss]));
      curves.push_back(curve(gaps.back()));
    }
    all[std::string(kCompared[loss])] = {{"curves", curves},
                                         {"chance", curve(chance(gaps, plans))}};
  }
  return all;
}

/// Steps at even distances, the last one among them.
std::set<int64_t> columns_of(const std::vector<int64_t>& sampled) {
  const size_t count = std::min(sampled.size(), kMaxColumns);
  std::set<int64_t> columns;
  for (size_t i = 0; i < count; ++i) {
    columns.insert(sampled[sampled.size() * (i + 1) / count - 1]);
  }
  return columns;
}

/// {"steps": [...], "tensors": [...], "elements": [the type of each tensor's codes], "snr_db": [one
/// list for each tensor], ...} of lines that have an object "fp8".
Json health_of(const std::filesystem::path& metrics) {
  std::vector<int64_t> sampled;
  for_each_line(metrics, [&](const Json& line) {
    if (line.contains("fp8") && line["fp8"].is_object()) {
      sampled.push_back(line.at("step").get<int64_t>());
    }
  });
  const std::set<int64_t> columns = columns_of(sampled);
  std::map<std::string, size_t> rows;
  Json health = {{"steps", columns}, {"tensors", Json::array()}, {"elements", Json::array()}};
  for_each_line(metrics, [&](const Json& line) {
    const auto found = columns.find(line.at("step").get<int64_t>());
    if (found == columns.end() || !line.contains("fp8") || !line["fp8"].is_object()) {
      return;
    }
    const auto column = static_cast<size_t>(std::distance(columns.begin(), found));
    for (const auto& [tensor, values] : line["fp8"].items()) {
      if (rows.try_emplace(tensor, rows.size()).second) {
        health["tensors"].push_back(tensor);
        health["elements"].push_back(values.value("element", ""));
        for (const char* key : kHealth) {
          health[key].push_back(Json(columns.size(), nullptr));
        }
      }
      for (const char* key : kHealth) {
        if (const auto value = values.find(key); value != values.end()) {
          health[key][rows.at(tensor)][column] = *value;
        }
      }
    }
  });
  return health;
}

/// {"step": .., "layers": [the loads of experts, one list for each layer]} of the last line that
/// has them; without experts the list is empty.
Json loads_of(const std::filesystem::path& metrics) {
  Json loads = {{"step", 0}, {"layers", Json::array()}};
  for_each_line(metrics, [&](const Json& line) {
    const auto found = line.find("expert_loads");
    if (found != line.end() && found->is_object()) {
      loads = {{"step", line.at("step")}, {"layers", Json::array()}};
      for (const auto& [layer, of_experts] : found->items()) {
        loads["layers"].push_back(of_experts);
      }
    }
  });
  return loads;
}

std::string text_in(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? read_text_file(path, kMaxText) : "";
}

Json object_in(const std::filesystem::path& path) {
  const Json object = Json::parse(text_in(path), nullptr, false);
  return object.is_object() ? object : Json::object();
}

Json run_data(const std::filesystem::path& root, const std::map<std::string_view, Points>& points) {
  const RunDirectory run = {root};
  Json data = {{"name", root.lexically_normal().string()}, {"curves", Json::object()}};
  for (const auto& [key, values] : points) {
    data["curves"][std::string(key)] = thinned(values);
  }
  // Runs of older versions have their tensors in metrics.jsonl.
  data["health"] =
      health_of(std::filesystem::exists(run.tensors()) ? run.tensors() : run.metrics());
  data["loads"] = loads_of(run.metrics());
  data["summary"] = object_in(run.summary());
  data["environment"] = object_in(run.environment());
  data["config"] = text_in(run.config());
  data["command"] = text_in(run.command());
  return data;
}

void put(std::string& page, std::string_view mark, const Json& data) {
  const size_t at = page.find(mark);
  check(at != std::string::npos, "the report's template has no mark for its data");
  // Part of a script element: no markup begins in it.
  page.replace(at, mark.size(), replaced(json_text(data), "<", "\\u003c"));
}

}  // namespace

std::string report_page(const std::vector<std::filesystem::path>& runs) {
  Json data = Json::array();
  std::vector<std::vector<Points>> losses;
  std::vector<std::string> plans;
  for (const std::filesystem::path& run : runs) {
    std::map<std::string_view, Points> points = points_of(RunDirectory{run}.metrics());
    data.push_back(run_data(run, points));
    losses.emplace_back();
    for (const std::string_view key : kCompared) {
      losses.back().push_back(std::move(points[key]));
    }
    plans.push_back(data.back()["summary"].value("plan", ""));
  }
  std::string page = kReportTemplate;
  put(page, "/*METRICS*/[]", drawn_metrics());
  put(page, "/*GAPS*/{}", gaps_of(losses, plans));
  put(page, "/*RUNS*/[]", data);
  return page;
}

namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out = "report.html";
};

int report(const ReportOptions& options) {
  const std::string out = options.out == "-" ? "/dev/stdout" : options.out;
  if (const std::string problem = why_not_replaced(out); !problem.empty()) {
    throw ConfigError("--out: " + problem);
  }
  write_file_atomically(out, report_page({options.runs.begin(), options.runs.end()}));
  if (!is_stream(out)) {  // it may be standard output
    print_fitted("wrote {}\n", out);
  }
  return 0;
}

}  // namespace

void add_report(Arguments command, Action& action) {
  auto options = std::make_shared<ReportOptions>();
  command.required_paths("runs", options->runs,
                         "Folders of runs (their output_dir), to be compared");
  command.path("--out", options->out, "The page to write (-: standard output)", PathUse::output);
  command.run(action, [options] { return report(*options); });
}

}  // namespace fp8train
