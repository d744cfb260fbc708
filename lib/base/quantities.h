#pragma once
// Numbers as people read them.

#include <concepts>
#include <string>

namespace fp8train {

/// Returns "1h 02m", "3m 05s" or "12s".
std::string describe_duration(double seconds);

/// Returns "950", "18.2k", "1.05M" or "7.00B".
std::string describe_count(double count);

/// Returns "512 B", "21.4 MiB" or "504 MiB".
std::string describe_bytes(double bytes);

std::string describe_count(std::integral auto count) {
  return describe_count(static_cast<double>(count));
}
std::string describe_bytes(std::integral auto bytes) {
  return describe_bytes(static_cast<double>(bytes));
}

}  // namespace fp8train
