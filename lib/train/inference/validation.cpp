#include "train/inference/validation.h"

#include "base/flight_recorder.h"
#include "base/signals.h"
#include "data/loader.h"

namespace fp8train {

std::optional<LossReport> validation_loss(Engine& engine, const Corpus& data, int64_t max_batches,
                                          Communicator& comm) {
  const EngineSettings& settings = engine.settings();
  ValidationBatches batches(
      data, settings.step.micro_batch_size, settings.step.seq_length,
      {.data_rank = engine.mesh().index(Axis::data), .data_ranks = engine.mesh().size(Axis::data)});
  engine.begin_evaluation();
  for (int64_t done = 0; max_batches == 0 || done < max_batches; ++done) {
    const std::optional<Batch> batch = batches.next();
    if (!batch) {
      break;
    }
    const bool stops = stop_signal() != 0;
    if (engine.passes_are_collective() ? comm.any_rank(stops) : stops) {
      break;
    }
    engine.evaluate(*batch);
    section_advances();
  }
  if (comm.any_rank(stop_signal() != 0)) {
    return std::nullopt;
  }
  return engine.evaluation_loss();
}

}  // namespace fp8train
