#include "base/error.h"

#include <fmt/format.h>

namespace fp8train {

void check(bool condition, const char* message, std::source_location place) {
  if (condition) {
    return;
  }
  throw InternalError(fmt::format("{}:{}: {}: {}", place.file_name(), place.line(),
                                  place.function_name(), message));
}

}  // namespace fp8train
