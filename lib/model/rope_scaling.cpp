#include "model/rope_scaling.h"

#include <fmt/format.h>

#include "base/names.h"

namespace fp8train {
namespace {

constexpr std::pair<RopeType, std::string_view> kTypes[] = {{RopeType::linear, "linear"},
                                                            {RopeType::dynamic, "dynamic"},
                                                            {RopeType::llama3, "llama3"},
                                                            {RopeType::yarn, "yarn"}};

}  // namespace

RopeScaling llama3_rope_scaling(double factor) {
  RopeScaling scaling;
  scaling.factor = factor;
  return scaling;
}

RopeScaling default_rope_scaling(RopeType type) {
  RopeScaling scaling;
  scaling.type = type;
  if (type != RopeType::llama3) {
    scaling.factor = 0.0;
    scaling.original_max_position_embeddings = 0;
  }
  return scaling;
}

std::string_view rope_type_name(RopeType type) {
  return name_in(kTypes, type);
}

std::optional<RopeType> find_rope_type(std::string_view name) {
  return value_in(kTypes, name);
}

std::vector<std::string> rope_type_names() {
  std::vector<std::string> names;
  for (const auto& [type, name] : kTypes) {
    names.emplace_back(name);
  }
  return names;
}

std::string rope_scaling_problem(const RopeScaling& scaling) {
  if (scaling.factor == 0.0) {
    return fmt::format("rope type {} needs a factor", rope_type_name(scaling.type));
  }
  if (scaling.type == RopeType::llama3 && scaling.high_freq_factor <= scaling.low_freq_factor) {
    return "high_freq_factor must be above low_freq_factor";
  }
  if (scaling.type == RopeType::yarn && scaling.beta_fast < scaling.beta_slow) {
    return "beta_fast must be at least beta_slow";
  }
  return {};
}

}  // namespace fp8train
