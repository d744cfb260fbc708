#pragma once
// The speed of steps, and the state of the GPU, in a line of metrics.

namespace fp8train {

class MetricLine;
struct StepMetrics;

/// Returns the value with five digits.
double rounded(double value);

/// Adds tokens, seconds and FLOPs, the shares of what the device could do, and the GPU.
void add_speed(MetricLine& line, const StepMetrics& metrics);

}  // namespace fp8train
