#include "dialects/pass.h"

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/field.h"
#include "config/scalar.h"

namespace fp8train::dialects {

using Kind = YamlNode::Kind;

std::string text_of(const YamlNode& node) {
  if (node.kind != Kind::sequence) {
    return node.kind == Kind::map ? "a section" : node.text;
  }
  std::string text;
  for (const YamlNode& item : node.items) {
    text += (text.empty() ? "" : ", ") + text_of(item);
  }
  return "[" + text + "]";
}

YamlNode scalar(std::string text, const YamlNode& place) {
  YamlNode node;
  node.kind = Kind::scalar;
  node.text = std::move(text);
  node.line = place.line;
  node.column = place.column;
  return node;
}

YamlNode flags(const std::array<bool, 3>& values, const YamlNode& place) {
  YamlNode node = scalar("", place);
  node.kind = Kind::sequence;
  for (const bool value : values) {
    node.items.push_back(scalar(value ? "true" : "false", place));
  }
  return node;
}

std::optional<bool> flag_in(const YamlNode& node) {
  return node.kind == Kind::scalar && !node.quoted ? parse_bool(node.text) : std::nullopt;
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
  problems_.add({source_, entry.place.line, entry.place.column}, entry.spelled, text);
}

void Pass::unknown(const Entry& entry, const std::vector<std::string>& known) {
  const std::string near = nearest_name(entry.name, known);
  complain(entry, near.empty() ? "unknown key; there are: " + joined(known)
                               : fmt::format("unknown key; did you mean \"{}\"?", near));
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
    YamlNode& section = section_for(pending.key.substr(0, dot), pending.entry.place);
    const std::string name = pending.key.substr(dot + 1);
    const auto found = std::find_if(section.keys.begin(), section.keys.end(),
                                    [&](const YamlKey& key) { return key.text == name; });
    if (found == section.keys.end()) {
      YamlKey key = pending.entry.place;
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

YamlNode& Pass::section_for(const std::string& name, const YamlKey& place) {
  auto found = std::find_if(root_.keys.begin(), root_.keys.end(),
                            [&](const YamlKey& key) { return key.text == name; });
  if (found == root_.keys.end()) {
    YamlKey key = place;
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
