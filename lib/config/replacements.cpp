#include "config/replacements.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/scalar.h"
#include "precision/plan.h"

namespace fp8train {
namespace {

constexpr std::pair<const char*, const char*> kAlternatives[] = {
    {"training.max_steps", "training.max_tokens"},
    {"training.gradient_accumulation_steps", "training.global_batch_size"},
    {"data.val", "data.val_fraction"},
    {"model.preset", "model.from"}};

constexpr std::string_view kSelectors[] = {"fp8.backend", "fp8.recipe", "fp8.opt_level",
                                           "fp8.use_te"};

bool selects_plan(const std::string& key) {
  return std::find(std::begin(kSelectors), std::end(kSelectors), key) != std::end(kSelectors);
}

bool describes_shape(const std::string& key) {
  return key.starts_with("model.") && key != "model.preset" && key != "model.from" &&
         key != "model.recompute";
}

/// Whether the key means something only where a plan scales.
bool is_of_scaling(const std::string& key) {
  return key.starts_with("fp8.") || key == "precision.schedule";
}

/// Whether the plan of this name scales nothing; false for a name that no plan has.
bool scales_nothing(const std::string& name) {
  try {
    return !has_scaled_gemms(plan_named(name));
  } catch (const ConfigError&) {
    return false;  // to be reported where the key is read
  }
}

/// Whether this is data.val_fraction: 0, which is no alternative to data.val.
bool holds_nothing_back(const GivenKey* key) {
  return key != nullptr && key->field->key == "data.val_fraction" &&
         parse_number(key->node.text) == 0.0;
}

class Replacement {
 public:
  Replacement(GivenKeys& given, const Problems& problems) : given_(given), problems_(problems) {}

  /// Removes the keys below the layer of `winner` for which `loses` holds.
  void of(const char* winner, const std::function<bool(const std::string&)>& loses) {
    const GivenKey* higher = given_.find(winner);
    if (higher == nullptr) {
      return;
    }
    std::vector<std::string> losers;
    std::string named;
    for (const auto& [position, key] : given_.all()) {
      if (key.layer < higher->layer && key.field->key != winner && loses(key.field->key)) {
        named += fmt::format("{}{} ({})", named.empty() ? "" : ", ", key.spelled,
                             problems_.where(key.place));
        losers.push_back(key.field->key);
      }
    }
    if (losers.empty()) {
      return;
    }
    given_.note(
        fmt::format("{} replaces {}",
                    problems_.is_file(higher->place.source)
                        ? fmt::format("{} ({})", higher->spelled, problems_.where(higher->place))
                        : problems_.where(higher->place),
                    named));
    for (const std::string& loser : losers) {
      given_.erase(loser);
    }
  }

  void of(const char* winner, const char* loser) {
    of(winner, [loser](const std::string& key) { return key == loser; });
  }

 private:
  GivenKeys& given_;
  const Problems& problems_;
};

}  // namespace

void replace_contradicted(GivenKeys& given, const Problems& problems) {
  Replacement replace(given, problems);
  for (const auto& [a, b] : kAlternatives) {
    replace.of(a, b);
    if (!holds_nothing_back(given.find(b))) {
      replace.of(b, a);
    }
  }
  replace.of("model.from", describes_shape);
  replace.of("mixed_precision", "precision.plan");
  if (const GivenKey* key = given.find("mixed_precision"); key != nullptr) {
    if (key->node.text != "fp8") {
      replace.of("mixed_precision", is_of_scaling);
    }
  }
  if (const GivenKey* key = given.find("precision.plan"); key != nullptr) {
    replace.of("precision.plan", scales_nothing(key->node.text)
                                     ? std::function<bool(const std::string&)>(is_of_scaling)
                                     : selects_plan);
  }
  for (const std::string_view selector : kSelectors) {
    replace.of(selector.data(), "precision.plan");
  }
}

}  // namespace fp8train
