#include "train/watch/stragglers.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace fp8train {
namespace {

double own_work(const SectionSeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) -
         seconds[static_cast<size_t>(Section::exchange)];
}

double median(const std::vector<SectionSeconds>& of_ranks,
              const std::function<double(const SectionSeconds&)>& value) {
  std::vector<double> values;
  values.reserve(of_ranks.size());
  for (const SectionSeconds& seconds : of_ranks) {
    values.push_back(value(seconds));
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<Straggler> find_straggler(const std::vector<SectionSeconds>& of_ranks) {
  if (of_ranks.size() < 2) {
    return std::nullopt;
  }
  const auto slowest =
      std::max_element(of_ranks.begin(), of_ranks.end(),
                       [](const auto& a, const auto& b) { return own_work(a) < own_work(b); });
  Straggler found = {.rank = static_cast<int>(slowest - of_ranks.begin()),
                     .seconds = own_work(*slowest),
                     .median_seconds = median(of_ranks, own_work)};
  double furthest = -1;
  for (size_t section = 0; section < kSections; ++section) {
    const double behind =
        (*slowest)[section] -
        median(of_ranks, [section](const SectionSeconds& seconds) { return seconds[section]; });
    if (section != static_cast<size_t>(Section::exchange) && behind > furthest) {
      furthest = behind;
      found.section = static_cast<Section>(section);
    }
  }
  return found;
}

}  // namespace fp8train
