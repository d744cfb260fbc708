#include "config/dialects/dialects.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/nearest.h"
#include "config/yaml/given_keys.h"

namespace fp8train {
/// A misspelled mixed_precision is one error, and not one more for each key of fp8.
void Dialects::assume_misspelled_precision(GivenKeys& given) const {
  const std::string meant = "mixed_precision";
  if (given.find(meant) != nullptr || given.find("precision.plan") != nullptr) {
    return;
  }
  const auto& problems = problems_.all();
  const auto& keys = given.all();
  const bool misspelled = std::any_of(problems.begin(), problems.end(), [&](const auto& problem) {
    return nearest_name(problem.key, {meant}) == meant;
  });
  const bool has_options = std::any_of(keys.begin(), keys.end(), [](const auto& entry) {
    return entry.second.field->key.starts_with("fp8.");
  });
  if (misspelled && has_options) {
    given.add(meant, dialects::value("fp8", YamlNode{}), {}, 0);
  }
}

/// Returns the key by which any source asks for FP8; empty if none does.
std::string Dialects::asks_for_fp8(const GivenKeys& given) const {
  const GivenKey* precision = given.find("mixed_precision");
  if (precision != nullptr && simplified(precision->node.text) == "fp8") {
    return precision->spelled == "mixed_precision" ? "mixed_precision: fp8" : precision->spelled;
  }
  if (state_.fp8 && state_.fp8->on) {
    return state_.fp8->spelled;
  }
  const GivenKey* plan = given.find("precision.plan");
  if (plan == nullptr || (precision != nullptr && precision->layer > plan->layer)) {
    return "";
  }
  const std::string& name = plan->node.text;
  const std::vector<std::string> names = plan_names();
  const bool known = std::ranges::find(names, name) != names.end();
  return known && has_scaled_gemms(plan_named(name)) ? "precision.plan: " + name : "";
}

/// DeepSpeed has no key for FP8: its half precision is the type under FP8, which another file
/// switches on (Accelerate, utils/dataclasses.py: set_mixed_precision enables bf16 for fp8) or
/// MS-AMP's section in the same one.
void Dialects::settle(GivenKeys& given) {
  for (const dialects::State::Half& half : state_.halves) {
    settle_half(half, given);
  }
  for (const dialects::State::Default& file : state_.defaults) {
    settle_default(file, given);
  }
}

/// A default belongs to the backend that its file names; a key of ours, another backend, or a plan
/// of another family leaves it out.
void Dialects::settle_default(const dialects::State::Default& file, GivenKeys& given) {
  const GivenKey* named = given.find("fp8.backend");
  const GivenKey* plan = given.find("precision.plan");
  const GivenKey* precision = given.find("mixed_precision");
  if (named != nullptr && named->layer == file.layer && named->node.text == file.backend &&
      (plan == nullptr || plan->node.text.starts_with(std::string(file.backend) + "-")) &&
      (precision == nullptr || simplified(precision->node.text) == "fp8") &&
      given.find(file.key) == nullptr) {
    given.add(std::string(file.key), dialects::value(std::string(file.value), YamlNode{}),
              file.mark, file.layer);
    state_.notes.push_back(fmt::format("fp8_config without {} read as {}: {} ({})",
                                       file.key.substr(file.key.find('.') + 1), file.key,
                                       file.value, file.reason));
  }
}

void Dialects::settle_half(const dialects::State::Half& half, GivenKeys& given) {
  const std::string& type = half.type;
  const std::string& spelled = half.spelled;
  const GivenKey* precision = given.find("mixed_precision");
  if (const std::string fp8 = asks_for_fp8(given); !fp8.empty()) {
    state_.notes.push_back(
        fmt::format("{}: {} is the type under FP8, which {} asks for", spelled, type, fp8));
  } else if (precision == nullptr || precision->layer < half.layer) {
    state_.notes.push_back(fmt::format("{}: true read as mixed_precision: {}", spelled, type));
    given.add("mixed_precision", dialects::value(type, YamlNode{}), half.mark, half.layer, spelled);
  } else if (simplified(precision->node.text) == type) {
    state_.notes.push_back(fmt::format("{} says what mixed_precision: {} says", spelled, type));
  } else if (precision->layer == half.layer) {
    problems_.add(
        half.mark, spelled,
        fmt::format("says {}, but {} at {} says {}; keep one of them", type, precision->spelled,
                    problems_.where(precision->mark), dialects::text_of(precision->node)));
  } else {
    state_.notes.push_back(fmt::format("{} ({}) replaces {} ({})", precision->spelled,
                                       problems_.where(precision->mark), spelled,
                                       problems_.where(half.mark)));
  }
}

void Dialects::finish(GivenKeys& given) {
  if (state_.fp32 && given.find("mixed_precision") == nullptr &&
      given.find("precision.plan") == nullptr && !state_.fp8) {
    given.add("mixed_precision", dialects::value("no", YamlNode{}), state_.fp32->mark,
              state_.fp32->layer, "mixed_precision");
    state_.notes.emplace_back(
        "neither fp16 nor bf16 is on, read as mixed_precision: no (DeepSpeed trains in fp32)");
  }
  if (!state_.fp8) {
    assume_misspelled_precision(given);
    return;
  }
  const GivenKey* precision = given.find("mixed_precision");
  const GivenKey* plan = given.find("precision.plan");
  const bool fp8 = precision != nullptr && simplified(precision->node.text) == "fp8";
  const auto complain = [&](const GivenKey& other) {
    problems_.add(state_.fp8->mark, state_.fp8->spelled,
                  fmt::format("{} conflicts with {}: {} at {}; remove one of them",
                              state_.fp8->on ? "switches FP8 on and" : "false", other.spelled,
                              dialects::text_of(other.node), problems_.where(other.mark)));
  };
  if (!state_.fp8->on) {
    if (fp8 || plan != nullptr) {
      complain(fp8 ? *precision : *plan);
    } else {
      state_.notes.push_back(state_.fp8->spelled + ": false read as: mixed_precision is not fp8");
    }
  } else if (plan != nullptr) {
    state_.notes.push_back(state_.fp8->spelled + " changes nothing: precision.plan names the plan");
  } else if (precision == nullptr) {
    given.add("mixed_precision", dialects::value("fp8", YamlNode{}), state_.fp8->mark,
              state_.fp8->layer, state_.fp8->spelled);
    state_.notes.push_back(state_.fp8->spelled + " read as mixed_precision: fp8");
  } else if (!fp8) {
    complain(*precision);
  } else {
    state_.notes.push_back(state_.fp8->spelled + " says what mixed_precision: fp8 says");
  }
}

}  // namespace fp8train
