#include "train/records/run_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "base/atomic_file.h"
#include "base/key_error.h"
#include "base/log.h"
#include "base/text.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/ranks.h"
#include "train/records/environment.h"
#include "train/records/metric_list.h"

namespace fp8train {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Each block has its own otherwise.
bool has_one_scale(const SlotReport& report) {
  return report.slot->format.block == per::tensor;
}

/// {"layers.0.mlp.up.x": {"element": .., "scale": .., "scale_exponent": .., "amax": ..,
/// "snr_db": .., "saturated_percent": .., "underflow_percent": ..}, ...}; no scale where each block
/// has its own.
OrderedJson slot_metrics(const std::vector<SlotReport>& slots) {
  OrderedJson all = OrderedJson::object();
  for (const SlotReport& report : slots) {
    OrderedJson one = {{"element", name_of(report.slot->format.dtype)}};
    if (has_one_scale(report)) {
      one["scale"] = static_cast<double>(report.scale);
      one["scale_exponent"] = std::ilogb(report.scale);
    }
    one["amax"] = static_cast<double>(report.sample.amax);
    if (const std::optional<double> snr = report.snr_db()) {
      one["snr_db"] = *snr;
    }
    one["saturated_percent"] = saturated_percent(report);
    one["underflow_percent"] = underflow_percent(report);
    // The object's own functions look through all keys for each.
    all.get_ref<OrderedJson::object_t&>().push_back({slot_name(*report.slot), std::move(one)});
  }
  return all;
}

/// {"x": {"mean": .., "worst": .., "worst_at": "layers.0.mlp.up.x"}, "w": .., "dy": ..}
OrderedJson class_metrics(const ScalingSummary& summary) {
  OrderedJson all = OrderedJson::object();
  for (const auto& [name, snr] : summary.snr) {
    all[name] = {{"mean", snr.mean_db}, {"worst", snr.worst_db}, {"worst_at", snr.worst}};
  }
  return all;
}

OrderedJson by_stage(const std::vector<double>& shares) {
  OrderedJson stages = OrderedJson::object();
  for (size_t stage = 0; stage < shares.size(); ++stage) {
    stages[std::to_string(stage)] = std::round(shares[stage] * 1e4) / 1e4;
  }
  return stages;
}

/// Returns the value with five digits.
double rounded(double value) {
  constexpr int kDigits = 5;
  return std::strtod(fmt::format("{:.{}g}", value, kDigits).c_str(), nullptr);
}

/// Adds tokens, seconds and FLOPs, the shares of what the device could do, and the GPU.
void add_speed(MetricLine& line, const StepMetrics& metrics) {
  const auto add = [&](MetricLine::Key key, const std::optional<double>& value) {
    if (value) line.add(key, rounded(*value));
  };
  add("tokens_per_second", metrics.tokens_per_second);
  add("seconds_per_step", metrics.seconds_per_step);
  add("tflops", metrics.tflops);
  add("mfu", metrics.mfu);
  add("speed_of_light", metrics.speed_of_light);
  if (metrics.gpu) {
    add("gpu_watts", metrics.gpu->watts);
    add("gpu_clock_mhz", metrics.gpu->clock_mhz);
    add("gpu_celsius", metrics.gpu->celsius);
    if (const auto& reasons = metrics.gpu->throttled_by; !reasons.empty()) {
      line.add("gpu_throttled_by", joined(reasons));
    }
  }
}

void add_loads(MetricLine& line, const ExpertLoads& loads, bool by_layer) {
  line.add("experts_dropped_percent", rounded(100.0 * loads.dropped))
      .add("experts_padding_percent", rounded(100.0 * loads.padding))
      .add("expert_load_most", rounded(loads.most))
      .add("expert_load_least", rounded(loads.least));
  if (loads.balance_loss) line.add("router_balance_loss", *loads.balance_loss);
  if (loads.z_loss) line.add("router_z_loss", *loads.z_loss);
  if (by_layer) {
    OrderedJson layers = OrderedJson::object();
    for (const auto& [layer, percent] : loads.percent_by_layer()) {
      layers[std::to_string(layer)] = percent;
    }
    line.add("expert_loads", layers);
  }
}

/// The sinks, each with its reader and the setting that asks for it.
struct SinkEntry {
  const char* reader;
  bool LoggingSettings::*is_wanted;
  std::unique_ptr<MetricSink> (*open)(const RunDirectory& run, int64_t step);
};
constexpr SinkEntry kSinks[] = {{"TensorBoard", &LoggingSettings::tensorboard, open_tensorboard}};

}  // namespace

RunRecords::RunRecords(const std::filesystem::path& root, bool leads) : directory_{root} {
  if (!leads) {
    return;
  }
  const auto open = [&] {
    lock_ = std::make_shared<RunLock>(root);
    directory_ = create_run_directory(root);
    require_regular_file(directory_.metrics());
    require_regular_file(directory_.tensors());
    require_regular_file(directory_.log());
  };
  keyed<ConfigError>("output_dir", [&] { keyed<DeviceError>("output_dir", open); });
}

void RunRecords::release_lock() const {
  if (!lock_) {
    return;
  }
  auto released = std::make_shared<std::promise<void>>();
  const std::future<void> outcome = released->get_future();
  try {
    std::thread([released, lock = lock_] {
      lock->release();
      released->set_value();
    }).detach();
  } catch (const std::system_error&) {  // no thread: the lock says who held it
    return;
  }
  outcome.wait_for(std::chrono::seconds(1));
}

void RunRecords::require_lock(Communicator& comm) const {
  if (first_rank_says(comm, has_lost_lock())) {
    throw DeviceError(fmt::format(
        "the lock in {} was removed or replaced during this run: another run may be in the "
        "same folder, and each would destroy the files of the other; this run ends here, and what "
        "it has saved stays",
        directory_.root.string()));
  }
}

void RunRecords::sync() const {
  if (!lock_) {
    return;
  }
  try {
    sync_content(directory_.metrics());
    sync_content(directory_.tensors());
    sync_content(directory_.log());
    sync_directory(directory_.root);
  } catch (const DeviceError& error) {
    log_warning(fmt::format("{}; a power failure may take some lines", error.what()));
  }
}

void RunRecords::begin_metrics(int64_t step, int64_t interval) {
  if (!lock_) {
    return;
  }
  if (step == 0 && !metrics_) {
    put_aside_metrics();
  }
  metrics_ = std::make_unique<MetricsWriter>(directory_.metrics(), step);
  if (metrics_->damaged_lines() > 0) {
    log_warning(fmt::format("{}: removed: {} with NUL bytes, which a power failure leaves",
                            directory_.metrics().string(),
                            counted(metrics_->damaged_lines(), "line")));
  }
  const int64_t last = last_step_in(directory_.metrics());
  if (last > 0 && last < step / interval * interval) {
    log_warning(fmt::format("{} has no lines of steps {} to {}, after which the run continues",
                            directory_.metrics().string(), last + 1, step));
  }
  tensors_ = std::filesystem::exists(directory_.tensors())
                 ? std::make_unique<MetricsWriter>(directory_.tensors(), step)
                 : nullptr;
}

void RunRecords::open_sinks(const LoggingSettings& settings, int64_t step,
                            const std::string& config) {
  sinks_.clear();
  for (const SinkEntry& entry : kSinks) {
    if (lock_ && settings.*entry.is_wanted) {
      sinks_.push_back({entry.reader, entry.open(directory_, step)});
    }
  }
  show([&](MetricSink& sink) { sink.text(step, "config", config); });
}

void RunRecords::put_aside_metrics() {
  const int64_t last = last_step_in(directory_.metrics());
  if (last == 0) {
    return;
  }
  int number = 1;
  while (std::filesystem::exists(directory_.earlier_metrics(number)) ||
         std::filesystem::exists(directory_.earlier_tensors(number))) {
    ++number;
  }
  std::error_code failure;
  std::filesystem::rename(directory_.metrics(), directory_.earlier_metrics(number), failure);
  if (!failure && std::filesystem::exists(directory_.tensors())) {
    std::filesystem::rename(directory_.tensors(), directory_.earlier_tensors(number), failure);
  }
  if (failure) {
    throw DeviceError(
        fmt::format("{} cannot be renamed: {}", directory_.metrics().string(), failure.message()));
  }
  log_warning(fmt::format(
      "the run before reached step {} and left no checkpoint; starting at step 1, its metrics are "
      "in {}; checkpoint.interval says how often a checkpoint is saved",
      last, directory_.earlier_metrics(number).string()));
}

void RunRecords::write_step(const StepMetrics& metrics) {
  if (!lock_) {
    return;
  }
  MetricLine line;
  line.add("step", metrics.step)
      .add("loss", metrics.loss)
      .add("lr", metrics.lr)
      .add("grad_norm", metrics.gradient_norm)
      .add("tokens", metrics.tokens);
  add_speed(line, metrics);
  line.add("memory_bytes", metrics.memory_bytes)
      .add("data_position", metrics.data_position)
      .add("time", utc_time())
      .add("skipped_steps", metrics.skipped_steps);
  if (!metrics.epochs.empty()) {
    OrderedJson epochs = OrderedJson::object();
    for (const auto& [source, passes] : metrics.epochs) epochs[source] = passes;
    line.add("epochs", epochs);
  }
  if (metrics.z_loss) line.add("z_loss", *metrics.z_loss);
  if (metrics.experts) add_loads(line, *metrics.experts, metrics.each_tensor);
  if (metrics.loss_scale) line.add("loss_scale", *metrics.loss_scale);
  if (metrics.sent) {
    line.add("wire_bytes_within_node", static_cast<int64_t>(metrics.sent->within_node))
        .add("wire_bytes_between_nodes", static_cast<int64_t>(metrics.sent->between_nodes));
  }
  if (metrics.straggler) {
    line.add("slowest_rank", OrderedJson{{"rank", metrics.straggler->rank},
                                         {"section", name_of(metrics.straggler->section)},
                                         {"seconds", metrics.straggler->seconds},
                                         {"median_seconds", metrics.straggler->median_seconds}});
  }
  if (!metrics.stage_idle.empty()) line.add("stage_idle", by_stage(metrics.stage_idle));
  if (!metrics.planned_stage_idle.empty())
    line.add("stage_idle_planned", by_stage(metrics.planned_stage_idle));
  if (metrics.scaling != nullptr) {
    line.add("fp8_saturated_percent", metrics.scaling->saturated_percent)
        .add("fp8_underflow_percent", metrics.scaling->underflow_percent)
        .add("fp8_snr_db", class_metrics(*metrics.scaling));
  }
  append(line);
  if (metrics.each_tensor && metrics.scaling != nullptr) {
    write_tensors(metrics);
  }
  show([&](MetricSink& sink) { sink.line(metrics.step, line, &metrics); });
}

void RunRecords::write_tensors(const StepMetrics& metrics) {
  try {
    if (!tensors_) {
      tensors_ = std::make_unique<MetricsWriter>(directory_.tensors());
    }
  } catch (const DeviceError& error) {
    log_warning(fmt::format("{}; the run continues without this line", error.what()));
    return;
  }
  append(OrderedJson{{"step", metrics.step}, {"fp8", slot_metrics(*metrics.slots)}}, *tensors_);
}

void RunRecords::write_validation(int64_t step, const LossReport& loss, bool has_experts) {
  if (!lock_) {
    return;
  }
  MetricLine line;
  line.add("step", step)
      .add("val_loss", loss.mean)
      .add("val_perplexity", std::exp(loss.mean))
      .add("val_tokens", loss.targets);
  if (has_experts) {
    line.add("val_experts_dropped_percent", rounded(100.0 * loss.dropped));
  }
  append(line);
  show([&](MetricSink& sink) { sink.line(step, line, nullptr); });
}

void RunRecords::write_save(const SaveResult& result, int64_t failed_in_a_row) {
  if (!lock_) {
    return;
  }
  append(MetricLine()
             .add("step", result.step)
             .add("saved", result.saved)
             .add("save_stall_seconds", result.stall_seconds)
             .add("save_write_seconds", result.write_seconds)
             .add("save_bytes", result.bytes)
             .add("failed_saves_in_a_row", failed_in_a_row));
}

void RunRecords::write_rollbacks(const std::vector<Rollback>& rollbacks, int64_t to_step) {
  if (!lock_) {
    return;
  }
  for (const Rollback& one : rollbacks) {
    if (one.to_step >= to_step) {  // begin_metrics() has dropped its line, or there was none
      append(MetricLine()
                 .add("step", to_step + 1)
                 .add("rollback", OrderedJson{{"from_step", one.from_step},
                                              {"to_step", one.to_step},
                                              {"first_sample", one.first_sample},
                                              {"end_sample", one.end_sample},
                                              {"kind", one.kind}}));
    }
  }
}

void RunRecords::show(const std::function<void(MetricSink&)>& write) {
  std::erase_if(sinks_, [&](const OpenSink& one) {
    try {
      write(*one.sink);
    } catch (const DeviceError& error) {
      log_warning(
          fmt::format("{}; {} does not see the rest of this run", error.what(), one.reader));
      return true;
    }
    return false;
  });
}

void RunRecords::append(const MetricLine& line) {
  append(line.object(), *metrics_);
}

void RunRecords::append(const nlohmann::ordered_json& line, MetricsWriter& writer) {
  try {
    writer.write(line);
    if (losing_) {
      log_warning(
          fmt::format("metrics are written again, without {}", counted(lost_lines_, "line")));
    }
    losing_ = false;
  } catch (const DeviceError& error) {
    ++lost_lines_;
    if (!losing_) {
      log_warning(fmt::format("{}; the run continues without this line", error.what()));
    }
    losing_ = true;
  }
}

void RunRecords::write_sample(int64_t step, const std::string& text) {
  if (!lock_) {
    return;
  }
  try {
    write_file_atomically(directory_.sample(step), text);
  } catch (const DeviceError& error) {
    log_warning(fmt::format("{}; the run continues without this sample", error.what()));
  }
  show([&](MetricSink& sink) { sink.text(step, "sample", text); });
}

void RunRecords::write_summary(nlohmann::ordered_json summary) {
  if (lock_) {
    summary["lost_metrics_lines"] = lost_lines_;
    write_json_file(directory_.summary(), summary);
  }
}

}  // namespace fp8train
