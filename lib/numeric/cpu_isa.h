#pragma once
// The levels of processors that kernels are compiled for, and the level of this machine.
// FP8TRAIN_CPU_ISA=NAME in the environment lowers it (never raises).

#include <cstdint>
#include <span>
#include <string_view>

// The table of levels: those of each architecture, the lowest first. LEVEL(identifier, name,
// requirement, further arguments): the name is that of the compiler's -march and of
// FP8TRAIN_CPU_ISAS (cmake/isa.cmake lists them too), the requirement what a processor must have
// in addition to the level before.
// x86-64: SSE2 · AVX2, FMA, F16C · AVX-512 F, BW, CD, DQ, VL. ARMv8-A: NEON with FMA; what later
// versions add (dot products, bf16) has no use in these kernels.
#if defined(__x86_64__)
#define FP8TRAIN_CPU_LEVELS(LEVEL, ...)                                                 \
  LEVEL(x86_64, "x86-64", true, __VA_ARGS__)                                            \
  LEVEL(x86_64_v3, "x86-64-v3",                                                         \
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&              \
            __builtin_cpu_supports("bmi2"),                                             \
        __VA_ARGS__)                                                                    \
  LEVEL(x86_64_v4, "x86-64-v4",                                                         \
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&      \
            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && \
            __builtin_cpu_supports("avx512vl"),                                         \
        __VA_ARGS__)
#elif defined(__aarch64__)
#define FP8TRAIN_CPU_LEVELS(LEVEL, ...) LEVEL(armv8_a, "armv8-a", true, __VA_ARGS__)
#else
#error "fp8train is built for x86-64 and 64-bit Arm"
#endif

namespace fp8train {

#define FP8TRAIN_LEVEL_IDENTIFIER(identifier, name, requirement, ...) identifier,
enum class CpuIsa : uint8_t { FP8TRAIN_CPU_LEVELS(FP8TRAIN_LEVEL_IDENTIFIER, ) };
#undef FP8TRAIN_LEVEL_IDENTIFIER

/// The levels of this architecture, the lowest first.
std::span<const CpuIsa> cpu_isas();

std::string_view name_of(CpuIsa isa);

/// The highest level of machine and operating system, after the environment's limit. Throws
/// ConfigError for an unknown name.
CpuIsa cpu_isa();

/// Whether the processor is Intel's.
bool cpu_is_intel();

/// Throws ConfigError: the program holds no kernels that this level can run.
[[noreturn]] void throw_no_kernels_for(CpuIsa machine);

}  // namespace fp8train
