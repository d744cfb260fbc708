#include "base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace fp8train {

std::string simplified(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c == '-' || c == '_') {
      continue;
    }
    result += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return result;
}

namespace {

/// Optimal string alignment: insertions, deletions, replacements and exchanges of neighbours.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(rows[0].begin(), rows[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({replaced, rows[i][j - 1] + 1, rows[i - 1][j] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows.back().back();
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 64;
  if (name.size() > kLongest) {
    return "";
  }
  const std::string wanted = simplified(name);
  for (const std::string& candidate : candidates) {
    if (simplified(candidate) == wanted) {
      return candidate;
    }
  }
  constexpr size_t kLong = 6;
  size_t best = wanted.size() < 2 ? 1 : wanted.size() < kLong ? 2 : 3;  // edits that are too many
  std::string result;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(wanted, simplified(candidate));
    if (distance < best) {
      best = distance;
      result = candidate;
    }
  }
  return result;
}

std::vector<std::string> nearest_names(std::string_view name,
                                       const std::vector<std::string>& candidates) {
  if (std::string nearest = nearest_name(name, candidates); !nearest.empty()) {
    return {std::move(nearest)};
  }
  const auto first_part = [](std::string_view text) {
    return simplified(text.substr(0, text.find_first_of("-_")));
  };
  const std::string begin = simplified(name);
  const std::string part = first_part(name);
  std::vector<std::string> beginning;
  std::vector<std::string> related;
  for (const std::string& candidate : candidates) {
    if (begin.size() > 1 && simplified(candidate).starts_with(begin)) {
      beginning.push_back(candidate);
    }
    if (part.size() > 1 && part != begin && first_part(candidate) == part) {
      related.push_back(candidate);
    }
  }
  return beginning.empty() ? related : beginning;
}

int64_t nearest_divisor(int64_t count, int64_t wanted) {
  wanted = std::min(wanted, count);
  for (int64_t distance = 0; distance < wanted; ++distance) {
    for (const int64_t other : {wanted - distance, wanted + distance}) {
      if (count % other == 0) {
        return other;
      }
    }
  }
  return 1;
}

}  // namespace fp8train
