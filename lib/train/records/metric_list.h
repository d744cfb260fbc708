#pragma once
// The fields of metrics.jsonl, in one list: a line of metrics takes no other key, and
// `fp8train report` draws those that have a label. What they mean is in docs/reference/metrics.md.

#include <algorithm>
#include <iterator>
#include <string_view>

#include "io/metrics.h"

namespace fp8train {

struct Metric {
  std::string_view key;
  std::string_view label = {};  ///< of its curve over steps; empty: it is not drawn
  std::string_view unit = {};   ///< of its values: "%", "bytes"; empty: none
  bool drawn_where_zero = true;
};

/// Curves are drawn in this order.
inline constexpr Metric kMetrics[] = {
    {"step"},
    {"loss", "training loss"},
    {"val_loss", "validation loss"},
    {"grad_norm", "norm of the gradient"},
    {"lr", "learning rate"},
    {"tokens"},
    {"tokens_per_second", "tokens per second"},
    {"seconds_per_step"},
    {"tflops"},
    {"mfu", "share of the GPU's 16-bit rate (MFU)"},
    {"memory_bytes", "most memory of the first rank", "bytes"},
    {"data_position"},
    {"time"},
    {"epochs"},
    {"loss_scale", "loss scale"},
    {"fp8_saturated_percent", "values clipped", "%"},
    {"fp8_underflow_percent", "values lost to zero", "%"},
    {"fp8_snr_db"},
    {"wire_bytes_within_node", "sent within a node", "bytes per step"},
    {"wire_bytes_between_nodes", "sent between nodes", "bytes per step"},
    {"slowest_rank"},
    {"skipped_steps", "skipped steps", {}, false},
    {"val_perplexity"},
    {"val_tokens"},
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
  struct Key {
    consteval Key(const char* key) : name(key) {  // NOLINT(google-explicit-constructor)
      if (std::none_of(std::begin(kMetrics), std::end(kMetrics),
                       [&](const Metric& metric) { return metric.key == name; })) {
        throw "kMetrics (train/records/metric_list.h) has no line for this key";
      }
    }
    std::string_view name;
  };

  template <typename T>
  MetricLine& add(Key key, const T& value) {
    object_.add(key.name, value);
    return *this;
  }
  const JsonObject& object() const { return object_; }

 private:
  JsonObject object_;
};

}  // namespace fp8train
