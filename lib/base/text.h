#pragma once
// Small pieces of messages.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fp8train {

/// "1 document", "2 documents".
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace fp8train
