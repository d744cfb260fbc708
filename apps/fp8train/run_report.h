#pragma once
// The records of a run as one HTML page that needs no network: curves, FP8 health by layer
// and step, memory, plan, configuration and environment of one run or of several.

#include <filesystem>
#include <string>
#include <vector>

namespace fp8train {

/// The page. Each folder is a run's: it has metrics.jsonl; summary.json, env.json and
/// config.resolved.yaml are shown where they are. Curves have 1500 points at most (means of
/// neighbouring lines), the map of tensors 60 steps. Throws DataError where a folder is not a
/// run's, which names the runs in it, or a line is not what a run writes; a last line that is still
/// being written is left out.
std::string report_page(const std::vector<std::filesystem::path>& runs);

}  // namespace fp8train
