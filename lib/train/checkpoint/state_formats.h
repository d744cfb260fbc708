#pragma once
// The formats that decide what the saved state of a run means. state.json of a checkpoint has them
// by role, and a run that resumes compares its own with them.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "tensor/tensor_format.h"

namespace fp8train {

/// The formats of the operands of a linear layer's GEMMs.
struct OperandFormats {
  TensorFormat fprop_x, fprop_w, dgrad_dy, dgrad_w, wgrad_dy, wgrad_x;
};

/// The operands of one layer.
struct LayerFormats {
  std::string name;  ///< "layers.0.mlp.up"
  OperandFormats operands;
};

struct StateFormats {
  OperandFormats operands;
  TensorFormat weight;
  /// The weight that the optimizer updates, if it is another one. fp32 in two halves is fp32 here,
  /// as which it is saved.
  std::optional<TensorFormat> master_weight;
  TensorFormat weight_gradient, gradient_wire, moment1, moment2;
  std::vector<LayerFormats> layers;         ///< scaled layers with a plan of their own
  std::vector<std::string> scaled_tensors;  ///< "layers.0.mlp.up.x"
};

StateFormats state_formats(Decoder& model);

/// The entry `formats` of state.json.
nlohmann::ordered_json json_of(const StateFormats& formats);
/// Reads what json_of() writes. Throws ConfigError where a text is not that of a format,
/// nlohmann::json::exception where an entry is missing or of another type.
StateFormats read_state_formats(const nlohmann::json& json);

/// Compares the formats role by role: "moment 1: was e4m3 group(128) current, is bf16". A line for
/// each role that differs, none where the saved state means the same. The weight does not count
/// where both have the same master weight, nor does the order of layers and tensors.
std::vector<std::string> format_changes(const StateFormats& saved, const StateFormats& current);

/// Compares with a checkpoint of an earlier version, whose `formats` are one text: one line.
std::vector<std::string> format_changes(const std::string& saved, const StateFormats& current);

}  // namespace fp8train
