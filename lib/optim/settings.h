#pragma once
// A user's settings of the optimizer and the learning-rate schedule.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace fp8train {

/// The factor of an orthogonalized update of a [rows, columns] matrix, in addition to the
/// learning rate.
enum class MuonScale : uint8_t {
  /// max(1, rows / columns)^0.5 (Jordan et al., github.com/KellerJordan/Muon, muon.py).
  original,
  /// 0.2 max(rows, columns)^0.5: updates as large as AdamW's, whose learning rate and weight decay
  /// then fit (Liu et al., "Muon is Scalable for LLM Training", arXiv 2502.16982, section 2.2).
  match_rms_adamw,
};
inline constexpr std::pair<MuonScale, std::string_view> kMuonScales[] = {
    {MuonScale::original, "original"}, {MuonScale::match_rms_adamw, "match_rms_adamw"}};

/// Settings for the matrices that Muon orthogonalizes. AdamW updates all other parameters.
struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;  ///< steps of the Newton-Schulz iteration
  MuonScale scale = MuonScale::match_rms_adamw;
  double lr_factor = 1.0;  ///< their learning rate divided by OptimizerSettings::lr

  bool operator==(const MuonSettings&) const = default;
};

/// The settings under `optimizer`.
struct OptimizerSettings {
  std::string name = "adamw";  ///< of an entry in optim/registry.h
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled; never on norms and biases
  double momentum = 0.9;      ///< sgd
  MuonSettings muon;
  double grad_clip = 1.0;  ///< global norm; 0 turns clipping off
  bool offloads = false;   ///< Parameter::offloads, of all parameters

  bool operator==(const OptimizerSettings&) const = default;
};

/// The settings under `scheduler`: the learning rate over steps.
struct ScheduleSettings {
  std::string type = "cosine";  ///< of an entry in optim/schedule.h
  int64_t warmup_steps = 0;
  double min_lr = 0.0;
  int64_t decay_steps =
      0;  ///< wsd: length of the final decay; cosine, linear: 0 means until max_steps

  bool operator==(const ScheduleSettings&) const = default;
};

}  // namespace fp8train
