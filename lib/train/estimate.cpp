#include "train/estimate.h"
#include "train/dry_run.h"

#include <algorithm>

namespace fp8train {

StepTime step_time(const DryRunStep& step, const GpuKind& gpu, const AssumedRates& rates) {
  constexpr double kTera = 1e12;
  constexpr double kGiga = 1e9;
  const OpCounters& work = step.work;
  StepTime time;
  time.gemms = ((work.gemm_flops - work.gemm_flops_8bit) / gpu.tera_flops_16bit +
                work.gemm_flops_8bit / gpu.tera_flops_8bit) /
               kTera / rates.gemm;
  time.attention = work.attention_flops / gpu.tera_flops_16bit / kTera / rates.attention;
  time.memory = work.bytes / gpu.memory_rate / kGiga / rates.memory;
  time.wire = (static_cast<double>(step.sent.within_node) / gpu.node_rate +
               static_cast<double>(step.sent.between_nodes) / gpu.network_rate) /
              kGiga / rates.wire;
  constexpr double kBackward = 2.0 / 3.0;  // of the GEMMs and of attention
  time.exposed = std::max(0.0, time.wire - kBackward * (time.gemms + time.attention));
  return time;
}

int64_t largest_micro_batch(EngineSettings settings, const DeviceTraits& traits,
                            const Topology& ranks, int rank, size_t bytes) {
  const auto fits = [&](int64_t size) {
    settings.micro_batch_size = size;
    return dry_run_step(settings, traits, ranks, rank).memory.total() <= bytes;
  };
  if (!fits(1)) {
    return 0;
  }
  int64_t fitting = 1;
  int64_t beyond = 2;
  while (fitting < kMostMicroBatch && fits(beyond)) {
    fitting = beyond;
    beyond *= 2;
  }
  if (fitting >= kMostMicroBatch) {
    return fitting;
  }
  while (beyond - fitting > 1) {
    const int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return fitting;
}

}  // namespace fp8train
