#pragma once
// The differences between the settings with which a run was saved and those with which it
// continues.

#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// Returns "optimizer.lr: 0.001 -> 0.0005" for each key whose value differs between two resolved
/// configurations (show_settings), in the order of `after`, then those that only `before` has. Left
/// out: keys that change nothing about the training (output_dir, threads, logging, sample,
/// checkpoint and job). Text that is no YAML counts as empty.
std::vector<std::string> changed_settings(std::string_view before, std::string_view after);

}  // namespace fp8train
