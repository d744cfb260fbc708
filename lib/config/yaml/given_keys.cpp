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
#include "base/key_error.h"
#include "base/text.h"
#include "config/fields/scalar.h"
#include "config/foreign_names.h"
#include "precision/plan.h"

namespace fp8train {
namespace {

size_t position_of(const Field& field) {
  return static_cast<size_t>(&field - field_table().data());
}

SourceMark mark_of_value(const GivenKey& given) {
  const bool has_own = given.node.line > 0;
  return {given.mark.source, has_own ? given.node.line : given.mark.line,
          has_own ? given.node.column : given.mark.column};
}

bool same_value(const YamlNode& a, const YamlNode& b) {
  return a.kind == b.kind && a.text == b.text &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same_value) &&
         std::equal(a.keys.begin(), a.keys.end(), b.keys.begin(), b.keys.end(),
                    [](const YamlKey& x, const YamlKey& y) { return x.text == y.text; });
}

constexpr std::pair<const char*, const char*> kAlternatives[] = {
    {"training.max_steps", "training.max_tokens"},
    {"training.max_steps", "training.max_epochs"},
    {"training.max_tokens", "training.max_epochs"},
    {"training.gradient_accumulation_steps", "training.global_batch_size"},
    {"data.val", "data.val_fraction"},
    {"parallelism.schedule", "parallelism.schedule_file"},
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

void GivenKeys::add(const std::string& path, const YamlNode& node, SourceMark mark, int layer,
                    const std::string& spelled) {
  if (const Field* field = find_field(path)) {
    add_value(*field, spelled.empty() ? path : spelled, node, mark, layer);
  } else if (path.empty() || is_section(path)) {
    add_section(path, node, mark, layer);
  } else {
    add_unknown(path, node, mark);
  }
}

void GivenKeys::add_section(const std::string& path, const YamlNode& node, SourceMark mark,
                            int layer) {
  if (!path.empty()) {
    sections_.emplace(path, mark);
  }
  if (node.kind == YamlNode::Kind::null || node.reported) {
    return;  // a section whose keys are all commented out
  }
  if (node.kind != YamlNode::Kind::map) {
    problems_.add(
        mark, path,
        fmt::format("expected {}, got {}", path.empty() ? "sections and keys" : "a section of keys",
                    describe(node)));
    return;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlKey& key = node.keys[i];
    const SourceMark key_mark = {mark.source, key.line, key.column};
    if (path.empty() && key.text.find('.') != std::string::npos) {
      add_unknown(key.text, node.items[i], key_mark);
    } else {
      add(path.empty() ? key.text : path + "." + key.text, node.items[i], key_mark, layer,
          key.spelled);
    }
  }
}

void GivenKeys::add_value(const Field& field, const std::string& spelled, const YamlNode& node,
                          SourceMark mark, int layer) {
  const auto found = keys_.find(position_of(field));
  const bool of_two_files = found != keys_.end() && found->second.mark.source != mark.source &&
                            problems_.is_file(found->second.mark.source) &&
                            problems_.is_file(mark.source);
  if (of_two_files && same_value(found->second.node, node)) {
    return;
  }
  if (of_two_files && found->second.layer < layer) {
    notes_.push_back(fmt::format("{}: {} replaces {} ({})", problems_.where(mark), spelled,
                                 found->second.spelled, problems_.where(found->second.mark)));
  }
  if (found != keys_.end() && found->second.layer == layer) {
    problems_.add(mark, spelled,
                  fmt::format("given twice, first as {} at {}", found->second.spelled,
                              problems_.where(found->second.mark)));
    return;
  }
  keys_[position_of(field)] = {&field, spelled, node, mark, layer, true};
}

void GivenKeys::add_unknown(const std::string& path, const YamlNode& node, SourceMark mark) {
  if (const PassiveKey* passive = find_passive_key(path)) {
    const std::vector<std::string>& harmless = passive->harmless;
    if (!harmless.empty() && std::ranges::find(harmless, node.text) == harmless.end()) {
      problems_.add(mark, path, passive->objection);
    }
    return;
  }
  const size_t last_dot = find_field(path) == nullptr ? path.rfind('.') : std::string::npos;
  const bool has_section = last_dot != std::string::npos;
  const std::string section = has_section ? path.substr(0, last_dot) : "";
  sections_with_unknown_.insert(section);
  unknown_section_ = unknown_section_ || (!has_section && node.kind == YamlNode::Kind::map);
  if (problems_.full()) {
    problems_.add(mark, path, "unknown key");
    return;
  }
  const std::string advice =
      advice_for_unknown_key(section, has_section ? path.substr(last_dot + 1) : path);
  problems_.add(mark, path, "unknown key" + (advice.empty() ? "" : "; " + advice));
}

const GivenKey* GivenKeys::find(std::string_view field_key) const {
  const Field* field = find_field(field_key);
  const auto found = field == nullptr ? keys_.end() : keys_.find(position_of(*field));
  return found == keys_.end() ? nullptr : &found->second;
}

void GivenKeys::erase(std::string_view field_key) {
  if (const Field* field = find_field(field_key)) {
    keys_.erase(position_of(*field));
  }
}

void GivenKeys::remove_section(const std::string& section, SourceMark mark) {
  std::vector<std::string> removed;
  std::erase_if(keys_, [&](const auto& entry) {
    const GivenKey& key = entry.second;
    const bool inside =
        key.field->key.starts_with(section + ".") || key.spelled.starts_with(section + ".");
    if (inside) {
      removed.push_back(key.spelled);
    }
    return inside;
  });
  if (!removed.empty()) {
    note(fmt::format("{} removes {}", problems_.where(mark), joined(removed)));
  }
}

void GivenKeys::read_all(Settings& settings) {
  for (auto& [position, given] : keys_) {
    const size_t before = problems_.count();
    given.field->read(settings,
                      FieldValue(given.node, given.spelled, mark_of_value(given), problems_));
    given.usable = problems_.count() == before && !given.node.reported;
  }
}

bool GivenKeys::may_be_misspelled(const std::string& key) const {
  return unknown_section_ || sections_with_unknown_.contains(key.substr(0, key.rfind('.')));
}

std::map<std::string, std::string> GivenKeys::locations() const {
  std::map<std::string, std::string> result;
  for (const auto& [position, given] : keys_) {
    const std::string& key = given.field->key;
    result[key] = fmt::format("{}: {}", problems_.where(given.mark),
                              given.spelled == key ? "" : given.spelled + ": ");
  }
  return result;
}

void GivenKeys::complain(const std::string& key, const std::string& text) const {
  if (const GivenKey* written = find(key)) {
    if (!written->usable) {
      return;  // its value has been refused
    }
    complain_at(written->mark, written->spelled, text);
    return;
  }
  const auto section = sections_.find(key.substr(0, key.rfind('.')));
  complain_at(section == sections_.end() ? SourceMark{} : section->second, key, text);
}

void GivenKeys::complain_at(SourceMark mark, const std::string& key,
                            const std::string& text) const {
  problems_.add(mark, key, text);
}

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
