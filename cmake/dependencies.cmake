# Libraries from the system's packages; scripts/setup.sh installs them. Nothing is downloaded.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
if(FP8TRAIN_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()

# Debian's dnnl-config.cmake insists on OpenCL; the library itself is enough for the cpu engine.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl SHARED IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})

find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(xxHash::xxhash SHARED IMPORTED)
set_target_properties(xxHash::xxhash PROPERTIES IMPORTED_LOCATION ${XXHASH_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${XXHASH_INCLUDE_DIR})

# fp8train_library(NAME::TARGET HEADER LIBRARY PACKAGE): a library without a
# CMake package of its own.
function(fp8train_library target header library package)
  find_path(${library}_INCLUDE_DIR ${header})
  find_library(${library}_LIBRARY ${library})
  if(NOT ${library}_INCLUDE_DIR OR NOT ${library}_LIBRARY)
    message(FATAL_ERROR
      "${header} or lib${library} was not found; install the Debian package ${package} "
      "(scripts/setup.sh)")
  endif()
  add_library(${target} SHARED IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${${library}_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${${library}_INCLUDE_DIR})
endfunction()

# Tokenizers: regular expressions, Unicode, sentencepiece's models.
fp8train_library(PCRE2::pcre2 pcre2.h pcre2-8 libpcre2-dev)
fp8train_library(utf8proc::utf8proc utf8proc.h utf8proc libutf8proc-dev)

fp8train_library(sentencepiece::sentencepiece sentencepiece_processor.h sentencepiece
  libsentencepiece-dev)

# Compressed data files.
fp8train_library(ZLIB::ZLIB zlib.h z zlib1g-dev)
fp8train_library(zstd::zstd zstd.h zstd libzstd-dev)

# Only lib/comm/backends/mpi_communicator.cpp includes mpi.h; its C++ bindings are not wanted.
if(NOT FP8TRAIN_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  if(FP8TRAIN_MPI STREQUAL "ON")
    find_package(MPI REQUIRED COMPONENTS CXX)
  else()
    find_package(MPI QUIET COMPONENTS CXX)
  endif()
  set(FP8TRAIN_MPI_FOUND ${MPI_CXX_FOUND})
endif()
if(FP8TRAIN_MPI_FOUND)
  message(STATUS "MPI: ${MPI_CXX_VERSION}")
else()
  message(STATUS "MPI: none")
endif()

# Catch2 2 and 3. Tests include the header of version 2, which tests/support/catch2_v3 has for 3.
set(FP8TRAIN_TESTS_FORM ${FP8TRAIN_TESTS})
if(FP8TRAIN_TESTS)
  find_package(Catch2 QUIET)
  if(Catch2_FOUND)
    set(FP8TRAIN_TESTS_FORM ON)
    message(STATUS "Tests: with Catch2 ${Catch2_VERSION}")
    if(Catch2_VERSION VERSION_GREATER_EQUAL 3)
      target_include_directories(Catch2::Catch2 INTERFACE
        ${CMAKE_SOURCE_DIR}/tests/support/catch2_v3)
    endif()
  elseif(FP8TRAIN_TESTS STREQUAL "AUTO")
    set(FP8TRAIN_TESTS_FORM OFF)
    message(STATUS "Tests: none (Catch2 was not found; scripts/setup.sh --dev installs it)")
  else()
    message(FATAL_ERROR
      "FP8TRAIN_TESTS: Catch2 was not found; install the Debian package catch2 "
      "(scripts/setup.sh --dev)")
  endif()
endif()
