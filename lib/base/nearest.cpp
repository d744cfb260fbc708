#include "base/nearest.h"

#include <algorithm>
#include <numeric>

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

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

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
  size_t best = std::min<size_t>(2, wanted.size() / 2) + 1;
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

}  // namespace fp8train
