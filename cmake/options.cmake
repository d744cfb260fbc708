# Build options, language level and warnings.
include(GNUInstallDirs)

set(FP8TRAIN_TESTS "AUTO" CACHE STRING "Build the tests: AUTO (where Catch2 is found), ON, OFF")
option(FP8TRAIN_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(FP8TRAIN_OPENMP
  "Use OpenMP threads in the cpu kernels (off under ThreadSanitizer: libgomp is not instrumented)"
  ON)
option(FP8TRAIN_UNITY
  "Compile several sources at a time: half the time of a clean build, more after each change" OFF)
option(FP8TRAIN_WERROR "Treat warnings as errors" OFF)
set(FP8TRAIN_CUDA "AUTO" CACHE STRING
  "CUDA backend: AUTO (on when a toolkit is found), ON, OFF, SHIM (kernels run on the host)")
set(FP8TRAIN_MPI "AUTO" CACHE STRING
  "Ranks as processes of MPI: AUTO (on when an MPI is found), ON, OFF")
set(FP8TRAIN_NCCL "AUTO" CACHE STRING
  "Ranks on GPUs over NCCL: AUTO (on with CUDA where nccl.h is found), ON, OFF")
set(FP8TRAIN_SANITIZE "" CACHE STRING
  "Sanitizers for every target, for example address,undefined or thread")
# The cpu kernels of lib/ops (*_cpu.cpp) are compiled once per level and chosen at run time.
set(FP8TRAIN_CPU_ISAS "ALL" CACHE STRING
  "Levels of processors the cpu kernels are compiled for: ALL, COMMON or a list (cmake/isa.cmake)")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "g++ 12 or later is needed; this is ${CMAKE_CXX_COMPILER_VERSION}")
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_UNITY_BUILD ${FP8TRAIN_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# A file that is not in the cache is preprocessed once, by the compiler (CCACHE_DEPEND), and one
# with precompiled headers is cached too.
find_program(FP8TRAIN_CCACHE ccache)
if(FP8TRAIN_CCACHE)
  set(FP8TRAIN_LAUNCHER env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    ${FP8TRAIN_CCACHE})
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${FP8TRAIN_LAUNCHER})
  endif()
endif()

# -ffp-contract=off: a * b + c is two roundings on every device and every level of processors, so
# that element-wise results have the same bits everywhere. A kernel that wants a fused
# multiply-add says so itself.
add_library(fp8train_flags INTERFACE)
set(fp8train_cxx_flags -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  -Wno-missing-field-initializers -ffp-contract=off
  $<$<BOOL:${FP8TRAIN_WERROR}>:-Werror>
  "$<$<NOT:$<BOOL:${FP8TRAIN_OPENMP}>>:-Wno-unknown-pragmas;-Wno-unused-variable>")
target_compile_options(fp8train_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${fp8train_cxx_flags}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xfatbin=-compress-all;\
-Xcompiler=-Wall;-Xcompiler=-Wextra>")
if(FP8TRAIN_SANITIZE)
  target_compile_options(fp8train_flags INTERFACE -fsanitize=${FP8TRAIN_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(fp8train_flags INTERFACE -fsanitize=${FP8TRAIN_SANITIZE})
  # Sanitized code takes GCC long to compile, a fourth of it for checks of pointers that
  # AddressSanitizer makes too: a null pointer ends the program there. The build for fuzzing, by
  # clang, has all checks, and is optimized for the sake of the inputs that it tries.
  # Flags of a target's property come after those above, which they change.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(cold -O0)
    if(FP8TRAIN_SANITIZE MATCHES "undefined")
      target_compile_options(fp8train_flags INTERFACE
        -fno-sanitize=null,vptr,object-size,nonnull-attribute,returns-nonnull-attribute)
      list(APPEND cold -fno-sanitize=alignment)
    endif()
    target_compile_options(fp8train_flags INTERFACE
      "$<$<BOOL:$<TARGET_PROPERTY:FP8TRAIN_COLD>>:${cold}>")
  endif()
  if(FP8TRAIN_FUZZ)
    target_compile_options(fp8train_flags INTERFACE
      "$<$<BOOL:$<TARGET_PROPERTY:FP8TRAIN_READS_NO_INPUT>>:-O0;-fno-sanitize=all>")
  endif()
endif()
