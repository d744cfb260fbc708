#include "io/checkpoint/run_directory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/input_file.h"

namespace fp8train {
namespace {

constexpr size_t kMaxCommands = 16U << 20;

}  // namespace

std::filesystem::path RunDirectory::sample(int64_t step) const {
  return samples() / fmt::format("step-{:06}.txt", step);
}

std::filesystem::path RunDirectory::earlier_metrics(int number) const {
  return root / fmt::format("metrics.{}.jsonl", number);
}

std::filesystem::path RunDirectory::earlier_tensors(int number) const {
  return root / fmt::format("tensors.{}.jsonl", number);
}

RunDirectory create_run_directory(const std::filesystem::path& root) {
  RunDirectory run{root};
  create_folder(run.samples());
  create_folder(run.checkpoints());
  return run;
}

void describe_run(const RunDirectory& run, const std::string& resolved_config,
                  const std::string& command_line, const JsonObject& environment) {
  write_file_atomically(run.config(), resolved_config);
  write_json_file(run.environment(), environment);
  std::string commands;
  if (std::filesystem::exists(run.command())) {
    commands = read_text_file(run.command(), kMaxCommands);
  }
  write_file_atomically(run.command(), commands + command_line + "\n");
}

std::vector<std::string> runs_in(const std::filesystem::path& folder) {
  std::vector<std::string> runs;
  std::error_code unseen;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unseen)) {
    if (std::filesystem::exists(RunDirectory{entry.path()}.metrics(), unseen)) {
      runs.push_back(entry.path().string());
    }
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

std::string earlier_config(const RunDirectory& run) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  std::error_code error;
  return std::filesystem::is_regular_file(run.config(), error)
             ? read_text_file(run.config(), kMaxBytes)
             : std::string();
}

}  // namespace fp8train
