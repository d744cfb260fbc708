#include "config/suggest.h"

#include <fmt/format.h>

#include "base/nearest.h"
#include "base/text.h"
#include "config/fields/field_table.h"
#include "config/foreign_names.h"

namespace fp8train {
namespace {

std::string belongs_to(const std::string& name, std::string_view key) {
  const size_t dot = key.rfind('.');
  if (dot == std::string_view::npos || key.find(' ') != std::string_view::npos) {
    return fmt::format("use {}", key);
  }
  const std::string_view leaf = key.substr(dot + 1);
  const std::string renamed = leaf == name ? "" : fmt::format(" as {}", leaf);
  return fmt::format("`{}` belongs to `{}`{}", name, key.substr(0, dot), renamed);
}

/// Why a key is not here, by its name or by a section that it is in (`lora.rank`); else nothing.
std::string not_here(const std::string& section, const std::string& name) {
  for (const std::string& part : split(fmt::format("{}.{}", name, section), '.')) {
    const ForeignName* entry = find_foreign_name(part);
    if (entry != nullptr && !entry->not_here.empty()) {
      return std::string(entry->not_here);
    }
  }
  return "";
}

/// Fields of other sections whose last part is `name`.
std::string same_name_elsewhere(const std::string& name) {
  std::string sections;
  size_t count = 0;
  for (const Field& field : field_table()) {
    const size_t dot = field.key.rfind('.');
    const std::string_view leaf = std::string_view(field.key).substr(dot + 1);
    if (simplified(leaf) != simplified(name)) {
      continue;
    }
    if (dot == std::string::npos) {
      return fmt::format("`{}` belongs to the top level", leaf);
    }
    sections += fmt::format("{}`{}`", count == 0 ? "" : " or ", field.key.substr(0, dot));
    ++count;
  }
  return sections.empty() ? "" : fmt::format("`{}` belongs to {}", name, sections);
}

}  // namespace

std::string key_of_foreign_name(const std::string& name) {
  if (const ForeignName* entry = find_foreign_name(name)) {
    return std::string(entry->key.find(' ') == std::string_view::npos ? entry->key : "");
  }
  std::string key;
  for (const Field& field : field_table()) {
    if (simplified(field.key.substr(field.key.rfind('.') + 1)) == simplified(name)) {
      if (!key.empty()) {
        return "";
      }
      key = field.key;
    }
  }
  return key;
}

std::string advice_for_unknown_key(const std::string& section, const std::string& name) {
  if (name.size() > 64) {
    return "";
  }
  const auto did_you_mean = [](const std::string& key) {
    return fmt::format("did you mean \"{}\"?", key);
  };
  if (const size_t dot = name.rfind('.'); dot != std::string::npos && find_field(name) != nullptr) {
    return fmt::format("write it as `{}` inside `{}`", name.substr(dot + 1), name.substr(0, dot));
  }
  const std::vector<std::string> siblings = names_in_section(section);
  const std::string nearest = nearest_name(name, siblings);
  if (!nearest.empty() && simplified(nearest) == simplified(name)) {
    return did_you_mean(nearest);
  }
  if (std::string missing = not_here(section, name); !missing.empty()) {
    return missing;
  }
  if (const ForeignName* entry = find_foreign_name(name)) {
    const std::string_view foreign = entry->key;
    const bool same_section = !section.empty() && foreign.rfind('.') == section.size() &&
                              foreign.substr(0, section.size()) == section;
    return same_section ? did_you_mean(std::string(foreign.substr(section.size() + 1)))
                        : belongs_to(name, foreign);
  }
  if (std::string elsewhere = same_name_elsewhere(name); !elsewhere.empty()) {
    return elsewhere;
  }
  if (!nearest.empty()) {
    return did_you_mean(nearest);
  }
  const std::string parent = section.substr(section.rfind('.') + 1);
  if (const ForeignName* entry = find_foreign_name(parent); entry != nullptr && !section.empty()) {
    return belongs_to(parent, entry->key);
  }
  std::vector<std::string> keys;
  for (const Field& field : field_table()) {
    keys.push_back(field.key.substr(field.key.rfind('.') + 1));
  }
  const std::string far = nearest_name(name, keys);
  if (far.empty() || far.size() < 4) {
    return "";
  }
  return "did you mean: " + same_name_elsewhere(far) + "?";
}

}  // namespace fp8train
