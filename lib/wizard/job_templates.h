#pragma once
// The files of slurm/ as they were when the program was built.

#include <string_view>
#include <vector>

namespace fp8train {

struct JobTemplate {
  std::string_view name;  ///< without its ending
  const char* text;
};

const std::vector<JobTemplate>& job_templates();

}  // namespace fp8train
