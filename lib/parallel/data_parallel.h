#pragma once
// Data parallelism (DDP): every rank has the whole model and its own batches; the gradients are
// summed over the ranks while backward still runs. Parameters whose gradients lie side by side make
// a bucket, which is exchanged in the format of the plan's wire (parallel/gradient_buckets.h). Two
// exchanges are under way at a time.

#include <cstdint>
#include <vector>

#include "nn/context.h"
#include "nn/parameter.h"
#include "parallel/exchange_settings.h"
#include "parallel/gradient_buckets.h"

namespace fp8train {

class DataParallel final : public GradientListener {
 public:
  /// Collective. `comm`, `device` and `parameters` outlive it. Throws ConfigError when gradients of
  /// the plan cannot cross as its wire says.
  DataParallel(Communicator& comm, Device& device, const ParameterStore& parameters,
               const ExchangeSettings& settings);

  /// Before the backward pass that completes the gradients.
  void begin(Stream stream) { buckets_.begin(stream); }

  void gradients_complete(size_t begin, size_t end) override { buckets_.complete(begin, end); }
  void progress() override { buckets_.progress(); }

  /// Waits until all gradients are sums over the ranks.
  void finish() { buckets_.finish(); }

 private:
  GradientBuckets buckets_;
};

}  // namespace fp8train
