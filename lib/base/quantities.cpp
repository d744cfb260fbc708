#include "base/quantities.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <iterator>

namespace fp8train {

std::string describe_count(double count) {
  if (count >= 1e9) {
    return fmt::format("{:.2f}B", count / 1e9);
  }
  if (count >= 1e6) {
    return fmt::format("{:.2f}M", count / 1e6);
  }
  return count >= 1e3 ? fmt::format("{:.1f}k", count / 1e3) : fmt::format("{:.0f}", count);
}

std::string describe_bytes(double bytes, int more) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < std::size(units)) {
    bytes /= 1024.0;
    ++unit;
  }
  const int digits = unit == 0 ? 0 : more + (bytes >= 100 ? 0 : 1);
  return fmt::format("{:.{}f} {}", bytes, digits, units[unit]);
}

std::pair<std::string, std::string> describe_both(size_t bytes, size_t other) {
  constexpr int kMaxDigits = 15;
  std::pair<std::string, std::string> texts;
  for (int more = 0; more <= kMaxDigits; ++more) {
    texts = {describe_bytes(static_cast<double>(bytes), more),
             describe_bytes(static_cast<double>(other), more)};
    if (bytes == other || texts.first != texts.second) break;
  }
  return texts;
}

std::string describe_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) {
    return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  }
  return whole >= 60 ? fmt::format("{}m {:02}s", whole / 60, whole % 60)
                     : fmt::format("{}s", whole);
}

}  // namespace fp8train
