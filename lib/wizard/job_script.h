#pragma once
// The job script of a run: one of slurm/*.sbatch, which are built into the program, with the run's
// numbers instead of those of the examples.

#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"

namespace fp8train {

struct JobScript {
  std::string source;  ///< "slurm/requeue.sbatch"
  std::string text;
};

/// For `config_path` as it is seen from where sbatch is called. `gpus`: a rank has a GPU of its
/// own. Throws ConfigError for a path with control characters, which would become lines of the
/// script.
JobScript job_script(const Settings& settings, const std::string& config_path, bool gpus);

/// Returns the path of the job script, such as "run.sbatch" for "run.yaml".
std::string job_script_path(const std::string& config_path);

/// Returns a duration in Slurm's form: "1-12:00:00", "24:00:00". Whole minutes, rounded up.
std::string slurm_time(double seconds);

// The files of slurm/ as they were when the program was built.

struct JobTemplate {
  std::string_view name;  ///< without its ending
  const char* text;
};

const std::vector<JobTemplate>& job_templates();

}  // namespace fp8train
