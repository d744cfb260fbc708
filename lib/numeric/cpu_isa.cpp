#include "numeric/cpu_isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace fp8train {
namespace {

CpuIsa detect() {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) {
    return CpuIsa::v4;
  }
  return v3 ? CpuIsa::v3 : CpuIsa::baseline;
}

CpuIsa limit_from_environment() {
  const char* limit = std::getenv("FP8TRAIN_CPU_ISA");
  if (limit == nullptr) {
    return CpuIsa::v4;
  }
  for (const CpuIsa isa : {CpuIsa::baseline, CpuIsa::v3, CpuIsa::v4}) {
    if (name_of(isa) == limit) {
      return isa;
    }
  }
  throw ConfigError(std::string("FP8TRAIN_CPU_ISA=") + limit +
                    ": expected x86-64, x86-64-v3 or x86-64-v4");
}

}  // namespace

std::string_view name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::baseline:
      return "x86-64";
    case CpuIsa::v3:
      return "x86-64-v3";
    case CpuIsa::v4:
      return "x86-64-v4";
  }
  return "?";
}

CpuIsa cpu_isa() {
  static const CpuIsa isa = std::min(detect(), limit_from_environment());
  return isa;
}

bool cpu_is_intel() {
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
}

void throw_no_kernels_for(CpuIsa machine) {
  throw ConfigError(
      "this program was built without kernels for " + std::string(name_of(machine)) +
      " processors; build it with FP8TRAIN_CPU_ISAS naming that level or a lower one" +
      " (or unset FP8TRAIN_CPU_ISA if it is set)");
}

}  // namespace fp8train
