#pragma once
// Folders of peft with the adapters of a model (huggingface/peft: src/peft/tuners/lora/config.py):
// adapter_config.json and adapter_model.safetensors.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "model/lora_settings.h"
#include "model/model_config.h"

namespace fp8train {

inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// Whether a folder has adapters and no weights of its own.
bool holds_adapters(const std::filesystem::path& folder);

/// The content of adapter_config.json, with the names of all modules for targets.
struct AdapterFolder {
  LoraSettings lora;
  std::string base;    ///< folder of the model that is adapted; empty: not named
  double dropout = 0;  ///< which trainings here do not apply
};
/// Throws CheckpointError, which names the option, for one that changes results and is not read.
AdapterFolder read_adapter_folder(const std::filesystem::path& folder);

/// Returns the text of adapter_config.json. `base`: the folder of the model; empty: none.
std::string adapter_config_text(const ModelConfig& config, const std::string& base);

/// Writes the adapters of a checkpoint as a folder of peft, which is new. Throws CheckpointError
/// where they cannot be read, DeviceError when the disk refuses.
void copy_adapters(const std::filesystem::path& from, const std::filesystem::path& to);

/// The adapters of a folder, to be added to the weights that they adapt.
class AdapterWeights {
 public:
  /// `transposed`: the base stores weights as [in, out] (Conv1D of GPT-2). As in peft, which
  /// corrects fan_in_fan_out by the type of a module, that option does not decide.
  AdapterWeights(const std::filesystem::path& folder, bool transposed);

  /// Returns the names of the weights: "model.layers.0.self_attn.q_proj.weight".
  std::vector<std::string> weights() const;
  /// Throws CheckpointError unless a weight of the base [rows, columns] can have its adapter.
  void check_shape(const std::string& weight, int64_t rows, int64_t columns) const;
  /// values += scale B A, for those from element `first` of a weight on. Sums are in double.
  void add(const std::string& weight, int64_t columns, int64_t first,
           std::vector<float>& values) const;

 private:
  struct Factors {
    std::string weight;
    std::vector<float> a, b;
    int64_t in = 0, out = 0;
  };
  const Factors& factors_of(const std::string& weight) const;

  AdapterFolder folder_;
  bool transposed_;
  SafetensorsFile file_;
  mutable Factors last_;
};

}  // namespace fp8train
