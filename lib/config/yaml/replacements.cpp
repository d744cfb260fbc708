#include "config/yaml/given_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/fields/scalar.h"
#include "precision/key_error.h"
#include "precision/plan.h"

namespace fp8train {
namespace {

constexpr std::pair<const char*, const char*> kAlternatives[] = {
    {"training.max_steps", "training.max_tokens"},
    {"training.max_steps", "training.max_epochs"},
    {"training.max_tokens", "training.max_epochs"},
    {"training.gradient_accumulation_steps", "training.global_batch_size"},
    {"data.val", "data.val_fraction"},
    {"model.preset", "model.from"}};

bool selects_plan(const std::string& key) {
  return std::find(std::begin(kPlanSelectors), std::end(kPlanSelectors), key) !=
         std::end(kPlanSelectors);
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

/// Whether this is data.val_fraction: 0, which is not an alternative to data.val.
bool holds_nothing_back(const GivenKey* key) {
  return key != nullptr && key->field->key == "data.val_fraction" &&
         parse_number(key->node.text) == 0.0;
}

/// Returns one of the given keys, those in `without` left out, that the plan does not read; empty:
/// there is none, or something else is wrong, which is reported where the keys are read.
std::string meaningless_option(const GivenKeys& given, const std::set<std::string>& without) {
  Problems unreported;
  unreported.add_source("", false);
  Settings probe;
  for (const auto& [position, key] : given.all()) {
    const std::string& name = key.field->key;
    const bool of_plan = name.starts_with("fp8.") || name.starts_with("precision.");
    if ((of_plan || name == "mixed_precision") && !without.contains(name)) {
      key.field->read(probe, FieldValue(key.node, key.spelled, {}, unreported));
    }
  }
  try {
    const bool selected =
        !probe.precision.plan.empty() || probe.precision.mixed_precision == MixedPrecision::fp8;
    if (selected && unreported.all().empty()) {
      resolve_plan(probe.precision);
    }
  } catch (const MeaninglessOption& option) {
    return option.keys().front();
  } catch (const ConfigError&) {
  }
  return {};
}

/// The key that selects the plan: of several the one of the highest layer.
const GivenKey* plan_selector(const GivenKeys& given) {
  const GivenKey* found = given.find("mixed_precision");
  const auto prefer = [&](std::string_view name) {
    const GivenKey* key = given.find(name);
    found = key != nullptr && (found == nullptr || key->layer > found->layer) ? key : found;
  };
  prefer("precision.plan");
  std::for_each(std::begin(kPlanSelectors), std::end(kPlanSelectors), prefer);
  return found;
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
                             problems_.where(key.mark));
        losers.push_back(key.field->key);
      }
    }
    if (losers.empty()) {
      return;
    }
    given_.note(
        fmt::format("{} replaces {}",
                    problems_.is_file(higher->mark.source)
                        ? fmt::format("{} ({})", higher->spelled, problems_.where(higher->mark))
                        : problems_.where(higher->mark),
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

bool describes_shape(const std::string& key) {
  return key.starts_with("model.") && key != "model.preset" && key != "model.from" &&
         key != "model.recompute" && key != "model.resize_vocabulary" &&
         !key.starts_with("model.lora.");
}

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
  for (const char* selector : kPlanSelectors) {
    replace.of(selector, "precision.plan");
  }
}

void replace_meaningless(GivenKeys& given, const Problems& problems) {
  const GivenKey* selector = plan_selector(given);
  if (selector == nullptr) {
    return;
  }
  std::set<std::string> losers;
  for (std::string name = meaningless_option(given, losers); !name.empty();
       name = meaningless_option(given, losers)) {
    const GivenKey* option = given.find(name);
    if (option == nullptr || option->layer >= selector->layer) {
      break;  // an error
    }
    losers.insert(name);
  }
  const std::string winner = selector->field->key;
  Replacement(given, problems).of(winner.c_str(), [&](const std::string& key) {
    return losers.contains(key);
  });
}

}  // namespace fp8train
