#pragma once
// The formats that decide what the saved state of a run means. state.json of a checkpoint has them
// by role, and a run that resumes compares its own with them.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/decoder.h"

namespace fp8train {

/// Returns the entry `formats` of state.json: the operands of the plan's GEMMs, stored tensors and
/// the wire of gradients; `layers`, the operands of scaled layers with a plan of their own;
/// `scaled_tensors`, such as "layers.0.mlp.up.x". `master_weight`, which the optimizer updates, is
/// there if it is not the weight; fp32 in two halves is fp32 here, as which it is saved.
nlohmann::ordered_json state_formats(Decoder& model);

/// Returns the formats of a checkpoint as state_formats() writes them. Throws ConfigError where a
/// text is not that of a format, nlohmann::json::exception where an entry is missing or of another
/// type.
nlohmann::json read_state_formats(nlohmann::json saved);

/// Compares the formats role by role: "moment 1: was e4m3 group(128) current, is bf16". A line for
/// each role that differs, none where the saved state means the same. The weight does not count
/// where both have the same master weight, nor does the order of layers and tensors. Formats of
/// earlier versions are one text, of which there is one line. Throws as read_state_formats() does.
std::vector<std::string> format_changes(const nlohmann::json& saved,
                                        const nlohmann::ordered_json& current);

}  // namespace fp8train
