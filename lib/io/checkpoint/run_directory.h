#pragma once
// The files of a run: their paths, and the functions that create the folder and its first files.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/metrics.h"

namespace fp8train {

/// The paths of the files of a run.
struct RunDirectory {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.resolved.yaml"; }
  std::filesystem::path command() const { return root / "command.txt"; }
  std::filesystem::path environment() const { return root / "env.json"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path tensors() const { return root / "tensors.jsonl"; }
  /// Returns the path of the metrics of an earlier start of the run, such as metrics.1.jsonl.
  std::filesystem::path earlier_metrics(int number) const;
  std::filesystem::path earlier_tensors(int number) const;
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path summary() const { return root / "summary.json"; }
  std::filesystem::path log() const { return root / "train.log"; }
  std::filesystem::path data_hashes() const { return root / "data_hashes.json"; }
  std::filesystem::path samples() const { return root / "samples"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }

  /// samples/step-001000.txt
  std::filesystem::path sample(int64_t step) const;
};

/// Creates the folder with samples/ and checkpoints/. Throws DeviceError when it cannot.
RunDirectory create_run_directory(const std::filesystem::path& root);

/// Writes config.resolved.yaml and env.json, and appends the command line to command.txt (one line
/// per start of the run). Throws DeviceError when a file cannot be written, DataError when
/// command.txt cannot be read.
void describe_run(const RunDirectory& run, const std::string& resolved_config,
                  const std::string& command_line, const JsonObject& environment);

/// Returns the folders in `folder` that are runs (each has metrics.jsonl), sorted; none if it
/// cannot be read.
std::vector<std::string> runs_in(const std::filesystem::path& folder);

/// Returns config.resolved.yaml of an earlier start in this folder; empty when there is none.
/// Throws DataError when it cannot be read.
std::string earlier_config(const RunDirectory& run);

}  // namespace fp8train
