#include "variables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/load.h"
#include "numeric/cpu_isa.h"

namespace fp8train {
namespace {

struct Variable {
  const char* name;
  std::vector<std::string> values;
};

constexpr const char* kSettings = "FP8TRAIN_SET";

std::vector<Variable> variables_with_choices() {
  std::vector<std::string> levels;
  for (const CpuIsa isa : cpu_isas()) {
    levels.emplace_back(name_of(isa));
  }
  return {{"FP8TRAIN_CPU_ISA", levels},
          {"FP8TRAIN_CPU_GEMM", {"fp32", "bf16"}},
          {"FP8TRAIN_CPU_PACK", {"0", "1"}},
          {"FP8TRAIN_CUDA_ATTENTION", {"own", "cudnn"}},
          {"FP8TRAIN_GEMM_PROBE", {"", "always"}}};
}

}  // namespace

std::string cpu_level() {
  try {
    return std::string(name_of(cpu_isa()));
  } catch (const ConfigError&) {
    return "of an unknown level";
  }
}

std::string set_variables() {
  std::vector<Variable> all = variables_with_choices();
  all.insert(all.end(), {{kSettings, {}}, {"FP8TRAIN_CACHE_DIR", {}}});
  std::vector<std::string> set;
  for (const Variable& variable : all) {
    if (const char* const value = std::getenv(variable.name)) {
      set.push_back(fmt::format("{}={}", variable.name, value));
    }
  }
  return set.empty() ? "none of this program is set" : fmt::format("{}", fmt::join(set, ", "));
}

std::string fix_of_variables() {
  std::vector<std::string> wrong;
  for (const auto& [name, values] : variables_with_choices()) {
    const char* const value = std::getenv(name);
    if (value != nullptr && std::ranges::find(values, value) == values.end()) {
      wrong.push_back(fmt::format(
          "{} to {}", name,
          fmt::join(values.begin() + (values.front().empty() ? 1 : 0), values.end(), " or ")));
    }
  }
  std::string fix = wrong.empty()
                        ? ""
                        : fmt::format("set {}, or unset it: a run that reads it ends at once",
                                      fmt::join(wrong, ", "));
  if (const char* const assignments = std::getenv(kSettings)) {
    try {
      check_assignments(assignments);
    } catch (const ConfigError& error) {
      fix +=
          (fix.empty() ? "" : "; ") + fmt::format("{}", fmt::join(split(error.what(), '\n'), "; "));
    }
  }
  return fix;
}

}  // namespace fp8train
