#include "layer_lines.h"

#include <fmt/format.h>

#include <optional>

namespace fp8train {
namespace {

/// The lines of one transformer layer, without "layers.N." in their names; one line that belongs to
/// none has a group of its own.
struct Group {
  std::optional<std::string> first, last;  ///< numbers
  std::vector<LayerLine> lines;
};

constexpr std::string_view kLayersPrefix = "layers.";

/// "3" of "layers.3.mlp.up".
std::optional<std::string> layer_number(const std::string& name) {
  const size_t end = name.find('.', kLayersPrefix.size());
  if (!name.starts_with(kLayersPrefix) || end == std::string::npos) {
    return std::nullopt;
  }
  return name.substr(kLayersPrefix.size(), end - kLayersPrefix.size());
}

std::vector<Group> groups_of(const std::vector<LayerLine>& lines) {
  std::vector<Group> groups;
  for (const LayerLine& line : lines) {
    const std::optional<std::string> number = layer_number(line.name);
    if (!number || groups.empty() || groups.back().last != number) {
      groups.push_back({number, number, {}});
    }
    const size_t begin = number ? kLayersPrefix.size() + number->size() + 1 : 0;
    groups.back().lines.push_back({line.name.substr(begin), line.text});
  }
  return groups;
}

}  // namespace

std::vector<LayerLine> folded(const std::vector<LayerLine>& lines) {
  std::vector<Group> merged;
  for (Group& group : groups_of(lines)) {
    if (group.last && !merged.empty() && merged.back().last && merged.back().lines == group.lines) {
      merged.back().last = group.last;
    } else {
      merged.push_back(std::move(group));
    }
  }
  std::vector<LayerLine> result;
  for (const Group& group : merged) {
    for (const LayerLine& line : group.lines) {
      std::string name = line.name;
      if (group.first) {
        name = fmt::format("{}{}{}.{}", kLayersPrefix, *group.first,
                           group.first == group.last ? "" : "-" + *group.last, line.name);
      }
      result.push_back({name, line.text});
    }
  }
  return result;
}

}  // namespace fp8train
