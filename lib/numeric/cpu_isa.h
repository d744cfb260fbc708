#pragma once
// The x86-64 level of this machine. FP8TRAIN_CPU_ISA=x86-64|x86-64-v3|x86-64-v4 in the environment
// lowers it (never raises).

#include <cstdint>
#include <string_view>

namespace fp8train {

enum class CpuIsa : uint8_t {
  baseline,
  v3,
  v4
};  // SSE2 · AVX2 + FMA + F16C · AVX-512 F/BW/CD/DQ/VL

std::string_view name_of(CpuIsa isa);

/// The highest level of machine and operating system, after the environment's limit. Throws
/// ConfigError for an unknown name.
CpuIsa cpu_isa();

/// Whether the processor is Intel's.
bool cpu_is_intel();

/// Throws ConfigError: the program holds no kernels that this level can run.
[[noreturn]] void throw_no_kernels_for(CpuIsa machine);

}  // namespace fp8train
