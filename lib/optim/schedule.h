#pragma once
// Learning rate as a pure function of the step.

#include <cstdint>

#include "optim/settings.h"

namespace fp8train {

/// Learning rate of optimizer step `step` (counted from 0) of a run of `max_steps`. Warm-up is
/// linear: step s of w has lr * (s + 1) / (w + 1), as nanoGPT. Then, with p the fraction of the
/// decay done and m = min_lr:
///   cosine   m + (lr - m) * (1 + cos(pi p)) / 2
///   linear   lr + (m - lr) * p
///   wsd      lr until the last decay_steps, then linear to m (warm-up, stable, decay)
///   constant lr
/// cosine and linear decay over decay_steps after the warm-up (0: until max_steps) and stay at m
/// after it.
double learning_rate(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps);

}  // namespace fp8train
