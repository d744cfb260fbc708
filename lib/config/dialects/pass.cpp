#include "config/dialects/pass.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/nearest.h"
#include "base/text.h"
#include "config/fields/field.h"
#include "config/fields/scalar.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;

/// The first that recognizes a key reads it. The last one also reads keys of our section fp8.
constexpr std::unique_ptr<Program> (*kPrograms[])(Pass&) = {accelerate, deepspeed, megatron};

bool has_word(std::string_view words, std::string_view word) {
  const std::vector<std::string> all = split(words, ' ');
  return !word.empty() && std::ranges::find(all, word) != all.end();
}

void append(YamlNode& map, const YamlKey& key, YamlNode node) {
  map.keys.push_back(key);
  map.items.push_back(std::move(node));
}

YamlNode without_items(YamlNode map) {
  map.keys.clear();
  map.items.clear();
  return map;
}

}  // namespace

std::optional<ForeignKey> find_key(const ForeignTable& table, std::string_view name) {
  if (has_word(table.without_meaning, name)) {
    return ForeignKey{name};
  }
  const auto found = std::ranges::find_if(
      table.keys, [&](const ForeignKey& key) { return has_word(key.names, name); });
  return found == table.keys.end() ? std::nullopt : std::optional(*found);
}

std::optional<std::string> find_word(std::span<const Words> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Words::first);
  return found == table.end() ? std::nullopt : std::optional<std::string>(found->second);
}

std::string text_of(const YamlNode& node) {
  if (node.kind != Kind::sequence) {
    return node.kind == Kind::map ? "a section" : node.text;
  }
  return "[" + joined(node.items, text_of) + "]";
}

YamlNode value(const std::string& text, const YamlNode& origin) {
  YamlNode node;
  node.kind = text.starts_with('[') ? Kind::sequence : Kind::scalar;
  node.line = origin.line;
  node.column = origin.column;
  if (node.kind == Kind::scalar) {
    node.text = text;
  } else {
    for (const std::string& element : split(text.substr(1, text.size() - 2), ',')) {
      node.items.push_back(value(trimmed(element), origin));
    }
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
  const bool whole = value && *value >= 1 && *value <= kMaxWhole && std::floor(*value) == *value;
  return whole ? static_cast<int64_t>(*value) : 0;
}

const YamlNode* value_of(const YamlNode& map, std::string_view key) {
  const auto found = std::ranges::find(map.keys, key, &YamlKey::text);
  return found == map.keys.end() ? nullptr
                                 : &map.items[static_cast<size_t>(found - map.keys.begin())];
}

bool Pass::run() {
  std::vector<std::unique_ptr<Program>> programs;
  for (const auto begin : kPrograms) {
    programs.push_back(begin(*this));
  }
  YamlNode stored = without_items(root_);
  for (size_t i = 0; i < root_.items.size(); ++i) {
    const Entry entry = {root_.keys[i].text, root_.keys[i].text, root_.keys[i], root_.items[i]};
    const auto program =
        std::ranges::find_if(programs, [&](const auto& one) { return one->recognizes(entry); });
    if (program != programs.end()) {
      changed_ = true;
      (*program)->read(entry);
    } else if (entry.name == "fp8" && entry.node.kind == Kind::map) {
      append(stored, entry.key, own_section(entry.node, *programs.back()));
    } else {
      append(stored, entry.key, entry.node);
    }
  }
  for (const auto& program : programs) {
    program->finish();
  }
  if (!without_meaning_.empty()) {
    tell(fmt::format("without a meaning here: {}", fmt::join(without_meaning_, ", ")));
  }
  if (!automatic_.empty()) {
    tell(fmt::format("\"auto\", so this program's own keys decide: {}",
                     fmt::join(automatic_, ", ")));
  }
  if (changed_) {
    root_ = std::move(stored);
    insert_pending();
  }
  return changed_;
}

/// `fp8` with its switch and Megatron's names taken out.
YamlNode Pass::own_section(const YamlNode& section, Program& megatron) {
  YamlNode stored = without_items(section);
  for (size_t i = 0; i < section.items.size(); ++i) {
    const YamlKey& key = section.keys[i];
    const Entry entry = {key.text, "fp8." + key.text, key, section.items[i]};
    if (key.text == "enabled") {
      changed_ = true;
      if (const auto on = flag(entry)) {
        has_switch_ = true;
        state.fp8 = State::Switch{given(entry), *on};
      }
    } else if (megatron.recognizes(entry)) {
      changed_ = true;
      megatron.read(entry);
    } else {
      append(stored, key, entry.node);
    }
  }
  return stored;
}

const YamlNode* Pass::value_for(std::string_view key) const {
  const auto found = std::ranges::find(pending_, key, &Pending::key);
  return found == pending_.end() ? nullptr : &found->entry.node;
}

int64_t Pass::ranks_of_replica() const {
  int64_t ranks = 1;
  for (const char* axis : {"parallelism.tensor", "parallelism.pipeline", "parallelism.context"}) {
    const YamlNode* const size = value_for(axis);
    ranks *= size == nullptr ? 1 : std::max<int64_t>(1, count_in(*size));
  }
  return ranks;
}

void Pass::tell(std::string line) {
  changed_ = true;
  state.notes.push_back(std::move(line));
}

void Pass::complain(const Entry& entry, const std::string& text) {
  changed_ = true;
  problems_.add(mark_of(entry.key), entry.spelled, text);
}

void Pass::unknown(const Entry& entry, const ForeignTable& known) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view words) {
    std::ranges::move(split(words, ' '), std::back_inserter(names));
  };
  for (const ForeignKey& key : known.keys) {
    add(key.names);
  }
  if (!known.without_meaning.empty()) {
    add(known.without_meaning);
  }
  const std::string near = nearest_name(entry.name, names);
  complain(entry, near.empty() ? "unknown key; there are: " + joined(names)
                               : fmt::format("unknown key; did you mean \"{}\"?", near));
}

void Pass::without_meaning(const Entry& entry) {
  changed_ = true;
  without_meaning_.push_back(entry.spelled);
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
    const YamlKey& written = entry.node.keys[i];
    const bool prefixed = written.text.starts_with(prefix);
    key({written.text.substr(prefixed ? prefix.size() : 0), entry.spelled + "." + written.text,
         written, entry.node.items[i]},
        table, special);
  }
}

void Pass::key(const Entry& entry, const ForeignTable& table, const Special& special) {
  const std::optional<ForeignKey> known = find_key(table, entry.name);
  if (!known) {
    unknown(entry, table);
    return;
  }
  const Meaning meaning = known->meaning;
  if (entry.node.kind == Kind::null || meaning == Meaning::nothing ||
      ((meaning == Meaning::off || meaning == Meaning::offload) && is_off(entry.node))) {
    without_meaning(entry);
  } else if (table.takes_auto && is_auto(entry.node)) {
    changed_ = true;
    automatic_.push_back(entry.spelled);
  } else if (meaning == Meaning::ours) {
    put(known->text, entry, entry.node);
  } else if (meaning == Meaning::values) {
    translate(*known, entry);
  } else if (meaning == Meaning::offload) {
    offload(*known, entry);
  } else if (meaning == Meaning::special) {
    changed_ = true;
    special(entry);
  } else {
    complain(entry, fmt::format("{}; remove it", known->text));
  }
}

void Pass::translate(const ForeignKey& key, const Entry& entry) {
  const std::optional<bool> flag = flag_in(entry.node);
  const bool is_text = entry.node.kind == Kind::scalar && (flag || !parse_bool(entry.node.text));
  const std::string said = flag ? (*flag ? "true" : "false") : simplified(entry.node.text);
  const auto found = std::ranges::find_if(key.values, [&](const ForeignValue& one) {
    return one.theirs == "*" || (is_text && one.theirs == said);
  });
  if (found == key.values.end()) {
    if (!entry.node.reported) {
      complain(entry, fmt::format("expected {}, got {}", key.expected, describe(entry.node)));
    }
    return;
  }
  const std::string text(found->text);
  switch (found->fate) {
    case ForeignValue::Fate::ours:
      put(key.text, entry, text.empty() ? entry.node : value(text, entry.node), found->remark);
      break;
    case ForeignValue::Fate::noted:
      tell(fmt::format("{}: {}", entry.spelled, replaced(text, "{}", entry.node.text)));
      break;
    case ForeignValue::Fate::ignored:
      without_meaning(entry);
      break;
    case ForeignValue::Fate::refused:
      complain(entry, text);
  }
}

void Pass::offload(const ForeignKey& key, const Entry& entry) {
  const YamlNode* const device = value_of(entry.node, "device");
  const YamlNode& to = device == nullptr ? entry.node : *device;
  if (to.kind == Kind::scalar && simplified(to.text) == "nvme") {
    complain(entry, "nothing is moved to NVMe here; take cpu");
  } else if (flag_in(to) != true && (to.kind != Kind::scalar || simplified(to.text) != "cpu")) {
    complain(entry, fmt::format("expected cpu or none, got {}", describe(to)));
  } else {
    put("offload.optimizer", entry, "true", key.text.empty() ? "" : key.text.data());
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

std::optional<bool> Pass::flag(const Entry& entry) {
  const std::optional<bool> value = flag_in(entry.node);
  if (!value && !entry.node.reported) {
    complain(entry, fmt::format("expected true or false, got {}", describe(entry.node)));
  }
  return value;
}

void Pass::insert_pending() {
  for (const auto& [dotted, entry] : pending_) {
    const size_t dot = dotted.find('.');
    const bool in_section = dot != std::string::npos;
    YamlNode& section = in_section ? section_for(dotted.substr(0, dot), entry.key) : root_;
    const std::string name = in_section ? dotted.substr(dot + 1) : dotted;
    const auto found = std::ranges::find(section.keys, name, &YamlKey::text);
    if (found == section.keys.end()) {
      append(section, {name, entry.key.line, entry.key.column, entry.spelled}, entry.node);
      continue;
    }
    const YamlNode& other = section.items[static_cast<size_t>(found - section.keys.begin())];
    if (simplified(text_of(other)) != simplified(text_of(entry.node))) {
      complain(entry,
               fmt::format("says {}, but {} at {} says {}; keep one of them", text_of(entry.node),
                           found->spelled.empty() ? dotted : found->spelled, where(mark_of(*found)),
                           text_of(other)));
    }
  }
}

YamlNode& Pass::section_for(const std::string& name, const YamlKey& origin) {
  auto found = std::ranges::find(root_.keys, name, &YamlKey::text);
  if (found == root_.keys.end()) {
    append(root_, {name, origin.line, origin.column, origin.spelled}, YamlNode{});
    found = root_.keys.end() - 1;
  }
  YamlNode& section = root_.items[static_cast<size_t>(found - root_.keys.begin())];
  section.kind = section.kind == Kind::null ? Kind::map : section.kind;
  return section;
}

}  // namespace fp8train::dialects
