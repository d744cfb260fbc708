#pragma once
// Whether a layout of ranks computes what one rank does: the values and gradients of whole
// parameters after some steps, and the first of them that differs.

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "engine/engine.h"

namespace fp8train {

/// The settings of the small run, in which each rank of the data axis has the same micro-batches,
/// and its ranks.
struct SmallRun {
  EngineSettings engine;
  Topology ranks;
  int64_t divided = 1;  ///< the run's widths are so many times as large
};

/// Cuts down a run: at most 16 ranks or, with parallelism.shard_ranks, 32; one block more than
/// stages, and widths by which all that ranks and formats divide is still divided. Patterns that
/// match only what is left out are dropped. Throws ConfigError as Engine does where the run's ranks
/// do not fit its model.
SmallRun small_run(const EngineSettings& engine, const Topology& ranks);

/// A model after some steps, whole, though ranks have parts of it.
struct TrainedModel {
  /// By step; values[0] are the initial ones. No gradients where ranks have no whole ones, and in
  /// parameters that are not trained.
  struct OfParameter {
    std::vector<std::vector<float>> values, gradients;
  };
  std::vector<std::string> names;  ///< in the order of the first rank's model
  std::map<std::string, OfParameter> parameters;
  std::vector<double> losses, norms;  ///< by step
};

/// Returns the micro-batch `index` of a run, of random tokens. Documents begin at a third of each
/// sequence where they are masked, and one target of five is ignored where targets are counted.
Batch random_batch(const EngineSettings& engine, int64_t data_ranks, uint64_t index);

/// Trains two steps on threads of this process, one for each rank, and returns what they leave.
/// Batches are random tokens, the same ones for any layout with as many micro-batches in all.
/// Throws what a rank throws.
TrainedModel train_in_threads(const SmallRun& run);
/// Trains one of these ranks and adds its part to `model`, while it holds `mutex`. Elements that
/// ranks have in common become NaN where they differ. Collective; `comm` null: one rank.
void train_part(const EngineSettings& engine, Communicator* comm, std::mutex& mutex,
                TrainedModel& model);

/// Returns a layout whose ranks have the whole model: as many as `run` has along the data axis or,
/// with the same batches, one.
SmallRun with_whole_models(const SmallRun& run);
SmallRun with_one_rank(const SmallRun& run);

/// How near two layouts come to each other. 0: the same bits.
struct Nearness {
  double gradient = 0;  ///< norm of a first gradient's difference, relative to its norm
  double change = 0;    ///< of a value in a step: the ratio of its norms less 1
  /// Of gradients after the first update. Where bits may differ, so do the signs of updates of
  /// small gradients, and the gradients of the next step more.
  double later_gradient = 0;
};
/// Returns what is expected of two layouts of a run; all but the layouts are equal.
Nearness expected_nearness(const SmallRun& one, const SmallRun& other);

/// The first tensor that two models do not have in common.
struct FirstDifference {
  std::string parameter;  ///< "loss" and "gradient norm" are compared last
  const char* tensor;     ///< "value", "gradient"
  int step;               ///< 0: before the first one
  double relative;   ///< norm of the difference, relative to the norm; of a value's change, as in
                     ///< Nearness
  double ratio;      ///< of norms, the other model's to the first one's
  std::string last;  ///< parameter of the step that differs, in the order of the model
  int count;         ///< of such parameters
};
std::optional<FirstDifference> first_difference(const TrainedModel& one, const TrainedModel& other,
                                                const Nearness& allowed);

}  // namespace fp8train
