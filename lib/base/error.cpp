#include "base/error.h"

#include <fmt/format.h>

namespace fp8train {

void check(bool condition, const char* message, const char* file, int line, const char* function) {
  if (condition) {
    return;
  }
  throw InternalError(fmt::format("{}:{}: {}: {}", file, line, function, message));
}

}  // namespace fp8train
