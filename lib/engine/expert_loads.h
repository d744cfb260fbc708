#pragma once
// How the tokens of a step were divided among experts.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace fp8train {

/// The loads of the experts of a model in a step, over all ranks.
struct ExpertLoads {
  double dropped = 0;  ///< share of the choices that no expert had memory for
  double padding = 0;  ///< share of the experts' rows that no token had
  /// The largest and the smallest load of an expert, as a multiple of the mean of its layer.
  double most = 0, least = 0;
  /// Of each expert in this rank's blocks with experts, [blocks][experts].
  std::vector<std::vector<int64_t>> choices;
  /// Routers add these to the loss: means over all tokens of a step that collects statistics;
  /// nothing where MoeSettings::balance_loss or z_loss is 0.
  std::optional<double> balance_loss, z_loss;

  /// Returns the choices of each expert in percent of the mean of its block, and the number of the
  /// block among those with experts. Blocks below the lowest that is trained have none.
  std::vector<std::pair<size_t, std::vector<int64_t>>> percent_by_layer() const;
};

}  // namespace fp8train
