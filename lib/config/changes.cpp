#include "config/show.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "config/yaml/yaml_tree.h"

namespace fp8train {
namespace {

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

void collect(const YamlNode& node, const std::string& path, Leaves& leaves) {
  if (node.kind != YamlNode::Kind::map) {
    leaves.emplace_back(path, text_of(node));
    return;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string& name = node.keys[i].text;
    const std::string key = path.empty() ? name : fmt::format("{}.{}", path, name);
    if (std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), key) ==
        std::end(kWithoutEffect)) {
      collect(node.items[i], key, leaves);
    }
  }
}

Leaves leaves_of(std::string_view yaml) {
  Problems problems;
  Leaves leaves;
  const size_t source = problems.add_source("an earlier configuration", true);
  const YamlNode root = parse_yaml(yaml, "", source, problems);
  if (root.kind == YamlNode::Kind::map && !root.reported) {
    collect(root, "", leaves);
  }
  return leaves;
}

const std::string* find(const Leaves& leaves, const std::string& key) {
  const auto found = std::find_if(leaves.begin(), leaves.end(),
                                  [&](const auto& leaf) { return leaf.first == key; });
  return found == leaves.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<std::string> changed_settings(std::string_view before, std::string_view after) {
  const Leaves old_leaves = leaves_of(before);
  const Leaves new_leaves = leaves_of(after);
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
