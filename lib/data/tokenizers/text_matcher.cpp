#include "data/tokenizers/text_matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/error.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kMostNodes = size_t{1} << 24;

/// Returns the number of nodes without the root.
size_t count_nodes(const std::vector<TextMatcher::Entry>& entries, const std::string& where) {
  std::vector<std::string_view> sorted;
  sorted.reserve(entries.size());
  for (const auto& [text, value] : entries) sorted.push_back(text);
  std::sort(sorted.begin(), sorted.end());
  size_t nodes = 0;
  std::string_view last;
  for (const std::string_view text : sorted) {
    const auto shared = std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first;
    nodes += static_cast<size_t>(text.end() - shared);
    last = text;
  }
  if (nodes > kMostNodes) {
    throw DataError(fmt::format(
        "{}: the tokens have {} bytes behind what they begin with in common; at most {} are read",
        where, nodes, kMostNodes));
  }
  return nodes;
}

}  // namespace

TextMatcher::TextMatcher(const std::vector<Entry>& entries, const std::string& where)
    : nodes_(1), children_(count_nodes(entries, where)) {
  std::vector<std::pair<int32_t, char>> edges(1);  // the parent of each node, and the byte
  for (const auto& [text, value] : entries) {
    int32_t node = kStart;
    for (const char c : text) {
      int32_t child = children_.find(node, static_cast<uint8_t>(c)).id;
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        children_.set(node, static_cast<uint8_t>(c), {.rank = 0, .id = child});
        nodes_.push_back({.length = nodes_[static_cast<size_t>(node)].length + 1});
        edges.emplace_back(node, c);
      }
      node = child;
    }
    if (node != kStart) nodes_[static_cast<size_t>(node)].value = value;
  }
  for (int32_t byte = 0; byte < 256; ++byte) {
    first_[static_cast<size_t>(byte)] = std::max(kStart, children_.find(kStart, byte).id);
  }
  std::vector<size_t> order(nodes_.size());  // short texts first
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return nodes_[a].length < nodes_[b].length; });
  for (const size_t at : order) {
    const auto [parent, byte] = edges[at];
    if (nodes_[at].length < 2) continue;
    nodes_[at].fallback = next(nodes_[static_cast<size_t>(parent)].fallback, byte);
    nodes_[at].shorter = ending(nodes_[at].fallback);
  }
}

}  // namespace fp8train::tokenizers
