#pragma once
// The fields of metrics.jsonl, in one list: a line of metrics takes no other key, TensorBoard shows
// the numbers that have a tag, and `fp8train report` draws those that have a label. What they mean
// is in docs/reference/metrics.md.

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "io/event_file.h"

namespace fp8train {

/// One key of a line of metrics.jsonl.
struct Metric {
  std::string_view key;
  std::string_view tag = {};    ///< in TensorBoard; empty: it is not shown there
  std::string_view label = {};  ///< label of the metric's curve over steps; empty: it is not drawn
  std::string_view unit = {};   ///< of its values: "%", "bytes"; empty: none
  /// Whether `fp8train report` draws the curve also if all its values are zero.
  bool drawn_where_zero = true;
};

/// Curves are drawn in this order.
inline constexpr Metric kMetrics[] = {
    {"step"},
    {"loss", "loss/train", "training loss"},
    {"val_loss", "loss/validation", "validation loss"},
    {"z_loss", "loss/z", "z-loss"},
    {"experts_dropped_percent", "experts/dropped_percent", "tokens that experts dropped", "%",
     false},
    {"experts_padding_percent", "experts/padding_percent", "unused rows of experts", "%"},
    {"expert_load_most", "experts/load_most", "largest load of an expert, of the mean"},
    {"expert_load_least", "experts/load_least"},
    {"expert_loads"},
    {"router_balance_loss", "experts/balance_loss", "balance loss of routers"},
    {"router_z_loss", "experts/z_loss", "z-loss of routers"},
    {"grad_norm", "optimizer/grad_norm", "norm of the gradient"},
    {"lr", "optimizer/lr", "learning rate"},
    {"tokens"},
    {"tokens_per_second", "speed/tokens_per_second", "tokens per second"},
    {"seconds_per_step"},
    {"tflops", "speed/tflops"},
    {"mfu", "speed/mfu", "share of the device's rate (MFU)"},
    {"speed_of_light", "speed/speed_of_light", "predicted over measured time (speed of light)"},
    {"gpu_watts", "gpu/watts", "power of the first rank's GPU", "W"},
    {"gpu_clock_mhz", "gpu/clock_mhz", "clock of the first rank's GPU", "MHz"},
    {"gpu_celsius", "gpu/celsius", "temperature of the first rank's GPU", "°C"},
    {"gpu_throttled_by"},
    {"memory_bytes", "memory/bytes", "most memory of the first rank", "bytes"},
    {"data_position"},
    {"time"},
    {"epochs"},
    {"loss_scale", "optimizer/loss_scale", "loss scale"},
    {"fp8_saturated_percent", "fp8/saturated_percent", "values clipped", "%"},
    {"fp8_underflow_percent", "fp8/underflow_percent", "values lost to zero", "%"},
    {"fp8_snr_db"},
    {"wire_bytes_within_node", {}, "sent within a node", "bytes per step"},
    {"wire_bytes_between_nodes", {}, "sent between nodes", "bytes per step"},
    {"slowest_rank"},
    {"stage_idle"},
    {"stage_idle_planned"},
    {"skipped_steps", "optimizer/skipped_steps", "skipped steps", {}, false},
    {"val_perplexity"},
    {"val_tokens"},
    {"val_experts_dropped_percent", "experts/val_dropped_percent"},
    {"saved"},
    {"save_stall_seconds"},
    {"save_write_seconds"},
    {"save_bytes"},
    {"failed_saves_in_a_row"},
    {"rollback"},
};

/// A line of metrics.jsonl. A key that kMetrics lacks does not compile.
class MetricLine {
 public:
  /// A key of kMetrics. Another text does not compile.
  struct Key {
    consteval Key(const char* key)  // NOLINT(google-explicit-constructor)
        : metric(std::find_if(std::begin(kMetrics), std::end(kMetrics),
                              [&](const Metric& each) { return each.key == key; })) {
      if (metric == std::end(kMetrics)) {
        throw "kMetrics (train/records/metric_list.h) has no line for this key";
      }
    }
    const Metric* metric;
  };

  template <typename T>
  MetricLine& add(Key key, const T& value) {
    object_[std::string(key.metric->key)] = value;
    if constexpr (std::is_arithmetic_v<T>) {
      if (!key.metric->tag.empty()) events_.scalar(key.metric->tag, static_cast<double>(value));
    }
    return *this;
  }
  const nlohmann::ordered_json& object() const { return object_; }
  /// Returns the numbers of the line that have a tag.
  const EventSummary& events() const { return events_; }

 private:
  nlohmann::ordered_json object_ = nlohmann::ordered_json::object();
  EventSummary events_;
};

}  // namespace fp8train
