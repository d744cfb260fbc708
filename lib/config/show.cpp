#include "config/show.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/screen.h"
#include "base/text.h"
#include "config/fields/field_table.h"
#include "config/foreign_names.h"
#include "config/model_folder.h"
#include "config/presets.h"
#include "config/yaml/yaml_tree.h"
#include "precision/plan_table.h"

namespace fp8train {
namespace {

std::string section_of(const std::string& key) {
  const size_t dot = key.find('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

/// The key to write: together with precision.plan, the fp8 keys are in `precision`.
const std::string& written_key(const Field& field, const Settings& settings) {
  const bool moves =
      !settings.precision.plan.empty() && section_of(field.key) == "fp8" && !field.aliases.empty();
  return moves ? field.aliases.front() : field.key;
}

struct Line {
  std::string path;  ///< dotted
  std::string value;
  bool is_set;
  const Field* field;
};

std::vector<Line> lines_of(const Settings& settings, bool resolved,
                           const std::vector<std::string>& also = {}) {
  Settings base;
  if (const Preset* preset = find_preset(settings.model.preset)) {
    apply_preset(*preset, base);
    base.model.preset.clear();
  }
  if (!settings.model.from.empty()) {
    base.data.tokenizer = usual_tokenizer(settings);
    base.step.seq_length = usual_seq_length(settings);
    const double rate = usual_rate(settings);
    if (settings.optimizer.lr == rate && rate != base.optimizer.lr) {
      base.scheduler.warmup_steps = usual_warmup(settings);
    }
    base.optimizer.lr = rate;
  }
  std::vector<Line> lines;
  for (const Field& field : field_table()) {
    const std::string value = field.write(settings);
    const bool applies = !field.applies || field.applies(settings);
    const bool is_set = applies && !value.empty();
    const bool differs =
        value != field.write(base) || std::find(also.begin(), also.end(), field.key) != also.end();
    if (!field.input_only && (resolved || (is_set && differs))) {
      lines.push_back({written_key(field, settings), value, is_set, &field});
    }
  }
  return lines;
}

/// A section is opened once, where its first line is; the order is otherwise preserved.
void move_sections_together(std::vector<Line>& lines) {
  const auto group_of = [](const Line& line) {
    const std::string section = section_of(line.path);
    return section.empty() ? line.path : section + ".";
  };
  std::map<std::string, size_t> positions;  // by first lines
  for (const Line& line : lines) {
    positions.emplace(group_of(line), positions.size());
  }
  std::stable_sort(lines.begin(), lines.end(), [&](const Line& a, const Line& b) {
    return positions.at(group_of(a)) < positions.at(group_of(b));
  });
}

/// `write` makes the lines of a key from "  name: value". `spaced`: sections are set apart.
template <class Write>
std::string text_of(std::vector<Line> lines, bool spaced, const Write& write) {
  move_sections_together(lines);
  std::string result;
  std::vector<std::string> open;  // the sections that enclose the current line
  for (const Line& line : lines) {
    std::vector<std::string> parts = split(line.path, '.');
    const std::string name = parts.back();
    parts.pop_back();
    const bool begins_group = line.path != lines.front().path &&
                              (parts.empty() ? !open.empty() : open.empty() || open[0] != parts[0]);
    result += spaced && begins_group ? "\n" : "";
    for (size_t depth = 0; depth < parts.size(); ++depth) {
      if (open.size() <= depth || open[depth] != parts[depth]) {
        open.resize(depth);
        result += fmt::format("{:{}}{}:\n", "", 2 * depth, parts[depth]);
        open.push_back(parts[depth]);
      }
    }
    open = parts;
    result +=
        write(line, fmt::format("{:{}}{}{}:{}{}", "", 2 * parts.size(), line.is_set ? "" : "# ",
                                name, line.value.empty() ? "" : " ", line.value));
  }
  return result;
}

/// A line with its documentation, next to it or above it.
std::string documented(const std::string& text, const std::string& doc, size_t columns) {
  constexpr size_t kCommentColumn = 34;
  const size_t column = std::max<size_t>(text.size() + 2, kCommentColumn);
  if (column + 2 + doc.size() <= columns) {
    return fmt::format("{:<{}}# {}\n", text, column, doc);
  }
  return wrapped(fmt::format("{:{}}# {}\n", "", text.find_first_not_of(' '), doc), columns) + text +
         "\n";
}

std::string explain_section(const std::string& section) {
  std::string result;
  for (const Field& field : field_table()) {
    const bool inside = field.key.starts_with(section + ".") ||
                        std::any_of(field.aliases.begin(), field.aliases.end(),
                                    [&](auto& a) { return a.starts_with(section + "."); });
    if (inside) {
      result += fmt::format("{}: {} ({}; default: {})\n", field.key, field.doc, field.accepts,
                            default_text(field));
    }
  }
  return result;
}

using Leaves = std::vector<std::pair<std::string, std::string>>;

/// Keys and whole sections.
constexpr std::string_view kWithoutEffect[] = {"output_dir", "threads",    "logging",
                                               "sample",     "checkpoint", "job"};

/// A value on one line, as it could be written.
std::string text_of(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::scalar) {
    return node.text;
  }
  std::string text;
  for (size_t i = 0; i < node.items.size(); ++i) {
    text += text.empty() ? "" : ", ";
    text += node.kind == YamlNode::Kind::map ? node.keys[i].text + ": " : "";
    text += text_of(node.items[i]);
  }
  if (node.kind == YamlNode::Kind::null) {
    return "not set";
  }
  return node.kind == YamlNode::Kind::map ? "{" + text + "}" : "[" + text + "]";
}

void collect(const YamlNode& node, const std::string& path, bool all, Leaves& leaves) {
  if (node.kind != YamlNode::Kind::map) {
    leaves.emplace_back(path, text_of(node));
    return;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string& name = node.keys[i].text;
    const std::string key = path.empty() ? name : fmt::format("{}.{}", path, name);
    if (all || std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), key) ==
                   std::end(kWithoutEffect)) {
      collect(node.items[i], key, all, leaves);
    }
  }
}

Leaves leaves_of(std::string_view yaml, bool all) {
  Problems problems;
  Leaves leaves;
  const size_t source = problems.add_source("an earlier configuration", true);
  const YamlNode root = parse_yaml(yaml, "", source, problems);
  if (root.kind == YamlNode::Kind::map && !root.reported) {
    collect(root, "", all, leaves);
  }
  return leaves;
}

const std::string* find(const Leaves& leaves, const std::string& key) {
  const auto found = std::find_if(leaves.begin(), leaves.end(),
                                  [&](const auto& leaf) { return leaf.first == key; });
  return found == leaves.end() ? nullptr : &found->second;
}

}  // namespace

std::string default_text(const Field& field) {
  static const Settings kDefaults;
  if (std::string text = field.write(kDefaults); !text.empty()) {
    return text;
  }
  std::vector<std::string> plans = plan_names();
  plans.insert(plans.begin(), plan_for_method({.mixed_precision = MixedPrecision::fp8}));
  for (const std::string& plan : plans) {  // the first for which the key has a meaning
    Settings settings;
    settings.precision = request_of(plan_named(plan));
    if (const std::string value = field.write(settings); !value.empty()) {
      return fmt::format("the plan's ({}: {})", plan, value);
    }
  }
  return "not set";
}

std::string show_settings(const Settings& settings, bool resolved, bool comments, size_t columns) {
  return text_of(
      lines_of(settings, resolved), false, [&](const Line& line, const std::string& text) {
        return comments
                   ? documented(text, fmt::format("{} ({})", line.field->doc, line.field->accepts),
                                columns)
                   : text + "\n";
      });
}

std::string commented_settings(const Settings& settings, const std::vector<std::string>& also,
                               size_t columns) {
  return text_of(lines_of(settings, false, also), true,
                 [&](const Line& line, const std::string& text) {
                   return documented(text, line.field->doc, columns);
                 });
}

std::string explain_key(const std::string& key, size_t columns) {
  const Field* field = find_field(key);
  if (field == nullptr && is_section(key)) {
    return explain_section(key);
  }
  if (field == nullptr) {
    const size_t dot = key.rfind('.');
    const bool nested = dot != std::string::npos;
    const std::string advice = advice_for_unknown_key(nested ? key.substr(0, dot) : "",
                                                      nested ? key.substr(dot + 1) : key);
    throw ConfigError(fmt::format("{}: unknown key{}", key, advice.empty() ? "" : "; " + advice));
  }
  const std::string other = joined(field->aliases);
  return wrapped(fmt::format("{}\n  {}\n  accepts: {}\n  default: {}\n{}", field->key, field->doc,
                             field->accepts, default_text(*field),
                             other.empty() ? "" : fmt::format("  also: {}\n", other)),
                 columns) +
         (field->question && field->question->preface ? field->question->preface(columns) : "");
}

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  for (const Field& field : field_table()) {
    keys.push_back(field.key);
  }
  return keys;
}

std::string presets_text(size_t columns) {
  std::string result;
  for (const Preset& preset : presets()) {
    result += fmt::format("{:<16}{}\n", preset.name, preset.doc);
  }
  return wrapped(result, columns);
}

std::vector<std::string> changed_settings(std::string_view before, std::string_view after,
                                          bool all) {
  const Leaves old_leaves = leaves_of(before, all);
  const Leaves new_leaves = leaves_of(after, all);
  std::vector<std::string> changes;
  for (const auto& [key, value] : new_leaves) {
    const std::string* old = find(old_leaves, key);
    if (old == nullptr || *old != value) {
      changes.push_back(fmt::format("{}: {} -> {}", key, old == nullptr ? "not set" : *old, value));
    }
  }
  for (const auto& [key, value] : old_leaves) {
    if (find(new_leaves, key) == nullptr) {
      changes.push_back(fmt::format("{}: {} -> not set", key, value));
    }
  }
  return changes;
}

}  // namespace fp8train
