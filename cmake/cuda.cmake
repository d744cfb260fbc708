# The cuda backend, in one of three forms (FP8TRAIN_CUDA):
#   ON    built by nvcc for the architectures of FP8TRAIN_CUDA_ARCHITECTURES; the runtime is linked
#         statically, cuBLASLt and cuDNN are loaded when they are first used, so that the program
#         starts on machines that have neither;
#   SHIM  compiled for the host: kernels run as fibers on the CPU (tests/support/cuda_shim), so that
#         every kernel and the wiring of a step can be executed, and sanitized, without a GPU;
#   OFF   left out; asking for `device: cuda` is then an error.
# AUTO is ON where nvcc is found (PATH, CUDACXX or /usr/local/cuda/bin), else OFF.
set(architectures "89-real;90a-real;100-real")
set(of_environment)
if(DEFINED ENV{FP8TRAIN_CUDA_ARCHITECTURES})
  set(architectures $ENV{FP8TRAIN_CUDA_ARCHITECTURES})
  set(of_environment FORCE)  # also in a folder that was configured for others
endif()
set(FP8TRAIN_CUDA_ARCHITECTURES "${architectures}" CACHE STRING
  "GPU architectures the kernels are compiled for" ${of_environment})

if(FP8TRAIN_CUDA STREQUAL "AUTO")
  find_program(FP8TRAIN_NVCC nvcc PATHS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(FP8TRAIN_NVCC AND NOT FP8TRAIN_SANITIZE)
    set(FP8TRAIN_CUDA_FORM ON)
    set(CMAKE_CUDA_COMPILER ${FP8TRAIN_NVCC})
  else()
    set(FP8TRAIN_CUDA_FORM OFF)
  endif()
else()
  set(FP8TRAIN_CUDA_FORM ${FP8TRAIN_CUDA})
endif()
message(STATUS "CUDA backend: ${FP8TRAIN_CUDA_FORM}")

if(FP8TRAIN_CUDA_FORM STREQUAL "ON")
  set(CMAKE_CUDA_ARCHITECTURES ${FP8TRAIN_CUDA_ARCHITECTURES})
  if(FP8TRAIN_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${FP8TRAIN_LAUNCHER})
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know that this nvcc speaks C++20
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  find_package(CUDAToolkit REQUIRED)
  include(${CMAKE_CURRENT_LIST_DIR}/cudnn.cmake)
elseif(FP8TRAIN_CUDA_FORM STREQUAL "SHIM")
  find_package(Boost REQUIRED COMPONENTS context)
endif()

# fp8train_cuda_sources(TARGET CUDA file... [GPU_ONLY file...] ABSENT file...): files of the cuda
# backend of a module made by fp8train_module, those of them that the SHIM form replaces by fakes,
# and those that stand in for all in a build without the backend. A .cu file includes nothing of
# CUDA but through ops/support/launch.cuh, and is compiled as C++ in the SHIM form. -fmad=false:
# what decides a code has the same bits as on the cpu; a kernel that wants a fused multiply-add
# writes fmaf (ops/support/fast_math.cuh).
function(fp8train_cuda_sources target)
  cmake_parse_arguments(PART "" "" "CUDA;GPU_ONLY;ABSENT" ${ARGN})
  if(FP8TRAIN_CUDA_FORM STREQUAL "OFF")
    target_sources(${target} PRIVATE ${PART_ABSENT})
    return()
  endif()
  target_sources(${target} PRIVATE ${PART_CUDA})
  set_source_files_properties(${PART_CUDA} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(FP8TRAIN_CUDA_FORM STREQUAL "ON")
    target_sources(${target} PRIVATE ${PART_GPU_ONLY})
    # A program with the property FP8TRAIN_STANDIN has a runtime of its own
    # (tests/support/cuda_standin).
    target_link_libraries(${target} PRIVATE
      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:FP8TRAIN_STANDIN>>>:CUDA::cudart_static>)
    return()
  endif()
  target_link_libraries(${target} PRIVATE fp8train_cuda_shim)
  # -mfma: kernels write fmaf, which would be a call otherwise; Arm has the instruction always. -O1
  # under a sanitizer: two thirds of the time that -O2 takes to compile.
  set(options -O2)
  if(FP8TRAIN_SANITIZE)
    set(options -O1)
  endif()
  if("x86-64-v3" IN_LIST FP8TRAIN_CPU_LEVELS)
    list(APPEND options -mfma)
  endif()
  foreach(file IN LISTS PART_CUDA)
    if(file MATCHES "[.]cu$")
      set_source_files_properties(${file} PROPERTIES LANGUAGE CXX
        COMPILE_OPTIONS "-x;c++;-Wno-unknown-pragmas;${options}")
    endif()
  endforeach()
endfunction()

if(FP8TRAIN_CUDA_FORM STREQUAL "SHIM")
  set(shim ${CMAKE_SOURCE_DIR}/tests/support/cuda_shim)
  add_library(fp8train_cuda_shim STATIC ${shim}/block_runner.cpp ${shim}/runtime.cpp
    ${shim}/runtime_events.cpp ${shim}/cublaslt_fake.cpp ${shim}/cublaslt_fake_table.cpp
    ${shim}/cublaslt_faults.cpp ${shim}/cublaslt_product.cpp ${shim}/cublaslt_scales.cpp
    ${shim}/cudnn_fake.cpp ${shim}/nccl_board.cpp ${shim}/nccl_fake.cpp
    ${shim}/nccl_fake_api.cpp ${shim}/nccl_fake_threads.cpp ${shim}/nccl_notes.cpp)
  set_target_properties(fp8train_cuda_shim PROPERTIES UNITY_BUILD OFF)
  # Modules and shim need each other: ops, which the fakes compute with, needs
  # what tensor and device have.
  set_target_properties(fp8train_cuda_shim PROPERTIES LINK_INTERFACE_MULTIPLICITY 3)
  target_include_directories(fp8train_cuda_shim PUBLIC ${shim})
  target_compile_definitions(fp8train_cuda_shim PUBLIC FP8TRAIN_CUDA_SHIM)
  # The fakes implement the headers there, and use numeric/convert.h.
  target_include_directories(fp8train_cuda_shim PRIVATE ${CMAKE_SOURCE_DIR}/lib)
  # The fake cuDNN computes on the cpu.
  target_link_libraries(fp8train_cuda_shim PRIVATE Boost::context fp8train_flags
    $<LINK_ONLY:fp8train_ops>)
endif()
