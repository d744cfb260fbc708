#include "numeric/cpu_isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace fp8train {
namespace {

struct Level {
  CpuIsa isa;
  std::string_view name;
  bool (*has_more)();  ///< whether the processor has what the level adds to the one before
};

#define FP8TRAIN_LEVEL(identifier, name, requirement, ...) \
  Level{CpuIsa::identifier, name, [] { return bool{requirement}; }},
constexpr std::array kLevels = {FP8TRAIN_CPU_LEVELS(FP8TRAIN_LEVEL, )};
#undef FP8TRAIN_LEVEL

CpuIsa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  CpuIsa isa = kLevels.front().isa;
  for (const Level& level : kLevels) {
    if (!level.has_more()) {
      break;
    }
    isa = level.isa;
  }
  return isa;
}

CpuIsa limit_from_environment() {
  const char* const limit = std::getenv("FP8TRAIN_CPU_ISA");
  if (limit == nullptr) {
    return kLevels.back().isa;
  }
  std::string names;
  for (const Level& level : kLevels) {
    if (level.name == limit) {
      return level.isa;
    }
    names += (names.empty() ? "" : ", ") + std::string(level.name);
  }
  throw ConfigError(std::string("FP8TRAIN_CPU_ISA=") + limit +
                    ": the levels of this processor's architecture are " + names);
}

}  // namespace

std::span<const CpuIsa> cpu_isas() {
  static const std::array isas = [] {
    std::array<CpuIsa, kLevels.size()> all{};
    std::transform(kLevels.begin(), kLevels.end(), all.begin(),
                   [](const Level& level) { return level.isa; });
    return all;
  }();
  return isas;
}

std::string_view name_of(CpuIsa isa) {
  return kLevels.at(static_cast<size_t>(isa)).name;
}

CpuIsa cpu_isa() {
  static const CpuIsa isa = std::min(detect(), limit_from_environment());
  return isa;
}

bool cpu_is_intel() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

void throw_no_kernels_for(CpuIsa machine) {
  throw ConfigError(
      "this program was built without kernels for " + std::string(name_of(machine)) +
      " processors; build it with FP8TRAIN_CPU_ISAS naming that level or a lower one" +
      " (or unset FP8TRAIN_CPU_ISA if it is set)");
}

}  // namespace fp8train
