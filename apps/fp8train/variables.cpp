#include "variables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace fp8train {
namespace {

struct Variable {
  const char* name;
  std::vector<std::string> values;
};

const Variable kVariables[] = {{"FP8TRAIN_CPU_GEMM", {"fp32", "bf16"}},
                               {"FP8TRAIN_CPU_PACK", {"0", "1"}},
                               {"FP8TRAIN_CUDA_ATTENTION", {"own", "cudnn"}},
                               {"FP8TRAIN_GEMM_PROBE", {"", "always"}}};

}  // namespace

std::string set_variables() {
  std::vector<std::string> set;
  for (const Variable& variable : kVariables) {
    if (const char* const value = std::getenv(variable.name)) {
      set.push_back(fmt::format("{}={}", variable.name, value));
    }
  }
  return set.empty() ? "those of the processor's and the GPU's products are not set"
                     : fmt::format("{}", fmt::join(set, ", "));
}

std::string fix_of_variables() {
  std::vector<std::string> wrong;
  for (const auto& [name, values] : kVariables) {
    const char* const value = std::getenv(name);
    if (value != nullptr && std::ranges::find(values, value) == values.end()) {
      wrong.push_back(fmt::format(
          "{} to {}", name,
          fmt::join(values.begin() + (values.front().empty() ? 1 : 0), values.end(), " or ")));
    }
  }
  return wrong.empty() ? ""
                       : fmt::format("set {}, or unset it: a run that reads it ends at once",
                                     fmt::join(wrong, ", "));
}

}  // namespace fp8train
