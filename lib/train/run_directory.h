#pragma once
// The folder of a run: config.resolved.yaml, command.txt, env.json, metrics.jsonl, train.log, samples/, checkpoints/, summary.json.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/metrics.h"
#include "precision/scaling_state.h"

namespace fp8train {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0, lr = 0, gradient_norm = 0;
  int64_t tokens = 0;
  double tokens_per_second = 0;
  std::optional<double> loss_scale;
  int64_t skipped_steps = 0;
  const std::vector<SlotReport>* slots = nullptr;  ///< FP8 rows: saturation and underflow by tensor role
};

struct RunSummary {
  std::string plan;
  int64_t parameters = 0, steps = 0, tokens = 0;
  double loss = 0;
  std::optional<double> val_loss;
  double best_val_loss = 0;
  int64_t best_val_step = 0;
  double seconds = 0, tokens_per_second = 0;
  size_t peak_memory_bytes = 0;
  int64_t skipped_steps = 0;
};
