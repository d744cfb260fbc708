#pragma once
// Numbers as people read them.

#include <concepts>
#include <cstddef>
#include <string>
#include <utility>

namespace fp8train {

/// Returns "1h 02m", "3m 05s" or "12s".
std::string describe_duration(double seconds);

/// Returns "950", "18.2k", "1.05M" or "7.00B".
std::string describe_count(double count);

/// Returns "512 B", "21.4 MiB" or "504 MiB". `more`: further digits.
std::string describe_bytes(double bytes, int more = 0);

/// Returns the texts of two amounts that are compared, with as many digits as tell them apart.
std::pair<std::string, std::string> describe_both(size_t bytes, size_t other);

std::string describe_count(std::integral auto count) {
  return describe_count(static_cast<double>(count));
}
std::string describe_bytes(std::integral auto bytes) {
  return describe_bytes(static_cast<double>(bytes));
}

}  // namespace fp8train
