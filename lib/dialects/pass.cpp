#include "dialects/pass.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/nearest.h"
#include "base/text.h"
#include "config/fields/field.h"
#include "config/fields/scalar.h"

namespace fp8train::dialects {

using Kind = YamlNode::Kind;

std::optional<ForeignKey> find_key(const ForeignTable& table, std::string_view name) {
  const std::vector<std::string> silent = split(table.without_meaning, ' ');
  if (!name.empty() && std::find(silent.begin(), silent.end(), name) != silent.end()) {
    return ForeignKey{name};
  }
  const auto found = std::find_if(table.keys.begin(), table.keys.end(),
                                  [&](const ForeignKey& key) { return key.name == name; });
  return found == table.keys.end() ? std::nullopt : std::optional(*found);
}

std::string text_of(const YamlNode& node) {
  if (node.kind != Kind::sequence) {
    return node.kind == Kind::map ? "a section" : node.text;
  }
  return "[" + joined(node.items, text_of) + "]";
}

YamlNode scalar(std::string text, const YamlNode& origin) {
  YamlNode node;
  node.kind = Kind::scalar;
  node.text = std::move(text);
  node.line = origin.line;
  node.column = origin.column;
  return node;
}

YamlNode flags(const std::array<bool, 3>& values, const YamlNode& origin) {
  YamlNode node = scalar("", origin);
  node.kind = Kind::sequence;
  for (const bool value : values) {
    node.items.push_back(scalar(value ? "true" : "false", origin));
  }
  return node;
}

std::optional<bool> flag_in(const YamlNode& node) {
  return node.kind == Kind::scalar && !node.quoted ? parse_bool(node.text) : std::nullopt;
}

bool is_off(const YamlNode& node) {
  if (node.kind == Kind::scalar) {
    const std::string text = simplified(node.text);
    return text.empty() || text == "none" || text == "no" || text == "off" || text == "0" ||
           parse_bool(node.text) == false;
  }
  if (node.kind == Kind::map && !node.items.empty()) {
    const YamlNode* enabled = value_of(node, "enabled");
    const YamlNode* device = value_of(node, "device");
    return (enabled != nullptr && is_off(*enabled)) || (device != nullptr && is_off(*device));
  }
  return node.items.empty();
}

bool is_auto(const YamlNode& node) {
  return node.kind == Kind::scalar && node.text == "auto";
}

int64_t count_in(const YamlNode& node) {
  const auto value = node.kind == Kind::scalar ? parse_number(node.text) : std::nullopt;
  const bool whole = value && *value >= 1 && *value <= kMostWhole && std::floor(*value) == *value;
  return whole ? static_cast<int64_t>(*value) : 0;
}

const YamlNode* value_of(const YamlNode& map, std::string_view key) {
  const auto found = std::find_if(map.keys.begin(), map.keys.end(),
                                  [&](const YamlKey& other) { return other.text == key; });
  return found == map.keys.end() ? nullptr
                                 : &map.items[static_cast<size_t>(found - map.keys.begin())];
}

void Pass::keep(YamlNode& map, const YamlKey& key, YamlNode node) {
  map.keys.push_back(key);
  map.items.push_back(std::move(node));
}

void Pass::tell(std::string line) {
  changed_ = true;
  notes_.push_back(std::move(line));
}

void Pass::complain(const Entry& entry, const std::string& text) {
  changed_ = true;
  problems_.add({source_, entry.key.line, entry.key.column}, entry.spelled, text);
}

void Pass::unknown(const Entry& entry, const ForeignTable& known) {
  std::vector<std::string> names;
  for (const ForeignKey& key : known.keys) {
    names.emplace_back(key.name);
  }
  if (!known.without_meaning.empty()) {
    const std::vector<std::string> silent = split(known.without_meaning, ' ');
    names.insert(names.end(), silent.begin(), silent.end());
  }
  const std::string near = nearest_name(entry.name, names);
  complain(entry, near.empty() ? "unknown key; there are: " + joined(names)
                               : fmt::format("unknown key; did you mean \"{}\"?", near));
}

void Pass::without_meaning(const Entry& entry) {
  changed_ = true;
  without_meaning_.push_back(entry.spelled);
}

void Pass::tell_without_meaning() {
  if (!without_meaning_.empty()) {
    tell(fmt::format("without a meaning here: {}", fmt::join(without_meaning_, ", ")));
  }
  if (!automatic_.empty()) {
    tell(fmt::format("\"auto\", so this program's own keys decide: {}",
                     fmt::join(automatic_, ", ")));
  }
}

void Pass::section(const Entry& entry, const ForeignTable& table, std::string_view prefix,
                   const Special& special) {
  changed_ = true;
  if (entry.node.kind == Kind::null) {
    return;
  }
  if (entry.node.kind != Kind::map) {
    complain(entry, fmt::format("expected a section of keys, got {}", describe(entry.node)));
    return;
  }
  for (size_t i = 0; i < entry.node.items.size(); ++i) {
    const YamlKey& key = entry.node.keys[i];
    const bool prefixed = key.text.starts_with(prefix);
    const Entry inner = {key.text.substr(prefixed ? prefix.size() : 0),
                         entry.spelled + "." + key.text, key, entry.node.items[i]};
    if (const auto known = find_key(table, inner.name)) {
      foreign(*known, inner, special, table.takes_auto);
    } else {
      unknown(inner, table);
    }
  }
}

void Pass::foreign(const ForeignKey& key, const Entry& entry, const Special& special,
                   bool takes_auto) {
  using Meaning = ForeignKey::Meaning;
  const bool is_one = entry.node.kind == Kind::scalar && entry.node.text == "1";
  const bool is_harmless = (key.meaning == Meaning::one && is_one) ||
                           (key.meaning == Meaning::off && is_off(entry.node));
  if (entry.node.kind == Kind::null || key.meaning == Meaning::nothing || is_harmless) {
    without_meaning(entry);
  } else if (takes_auto && is_auto(entry.node)) {
    changed_ = true;
    automatic_.push_back(entry.spelled);
  } else if (key.meaning == Meaning::ours) {
    put(key.text, entry, entry.node);
  } else if (key.meaning == Meaning::special) {
    special(key, entry);
  } else {
    complain(entry, fmt::format("{}; remove it", key.text));
  }
}

void Pass::put(std::string_view key, const Entry& entry, YamlNode value, const char* remark) {
  const std::string before = text_of(entry.node);
  const std::string after = text_of(value);
  tell(before == after
           ? fmt::format("{} read as {}{}", entry.spelled, key, remark)
           : fmt::format("{}: {} read as {}: {}{}", entry.spelled, before, key, after, remark));
  Entry ours = entry;
  ours.node = std::move(value);
  pending_.push_back({std::string(key), std::move(ours)});
}

void Pass::put_default(std::string_view key, const std::string& spelled, const YamlNode& value,
                       const char* remark) {
  put(key, {spelled, spelled, {spelled, value.line, value.column, {}}, value}, value, remark);
}

std::optional<bool> Pass::flag(const Entry& entry) {
  const std::optional<bool> value = flag_in(entry.node);
  if (!value && !entry.node.reported) {
    complain(entry, fmt::format("expected true or false, got {}", describe(entry.node)));
  }
  return value;
}

void Pass::insert_pending() {
  for (const Pending& pending : pending_) {
    const size_t dot = pending.key.find('.');
    const bool in_section = dot != std::string::npos;
    YamlNode& section =
        in_section ? section_for(pending.key.substr(0, dot), pending.entry.key) : root_;
    const std::string name = in_section ? pending.key.substr(dot + 1) : pending.key;
    const auto found = std::find_if(section.keys.begin(), section.keys.end(),
                                    [&](const YamlKey& key) { return key.text == name; });
    if (found == section.keys.end()) {
      YamlKey key = pending.entry.key;
      key.text = name;
      key.spelled = pending.entry.spelled;
      keep(section, key, pending.entry.node);
      continue;
    }
    const YamlNode& other = section.items[static_cast<size_t>(found - section.keys.begin())];
    if (simplified(text_of(other)) != simplified(text_of(pending.entry.node))) {
      complain(pending.entry,
               fmt::format("says {}, but {} at {} says {}; keep one of them",
                           text_of(pending.entry.node),
                           found->spelled.empty() ? pending.key : found->spelled,
                           problems_.where({source_, found->line, found->column}), text_of(other)));
    }
  }
}

YamlNode& Pass::section_for(const std::string& name, const YamlKey& origin) {
  auto found = std::find_if(root_.keys.begin(), root_.keys.end(),
                            [&](const YamlKey& key) { return key.text == name; });
  if (found == root_.keys.end()) {
    YamlKey key = origin;
    key.text = name;
    keep(root_, key, scalar("", YamlNode{}));
    found = root_.keys.end() - 1;
    root_.items.back().kind = Kind::map;
  }
  YamlNode& section = root_.items[static_cast<size_t>(found - root_.keys.begin())];
  section.kind = section.kind == Kind::null ? Kind::map : section.kind;
  return section;
}

}  // namespace fp8train::dialects
