#pragma once
// The formats of a run as state.json stores them, and what differs between two runs.

#include <string>
#include <vector>

#include "model/decoder.h"

namespace fp8train {

/// Names every format that decides what the saved state means: those of each product, of stored
/// tensors and of layers with a plan of their own, and the names of all scaled tensors.
std::string formats_text(Decoder& model);

/// Compares two formats_text(): "dgrad: was e5m2 ..., is e4m3 ...", a line for each product or list
/// of tensors that differs.
std::vector<std::string> format_changes(const std::string& saved, const std::string& current);

}  // namespace fp8train
