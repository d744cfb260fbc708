# Modules in order. A module may use only modules that come before it
# (docs/develop/architecture.md).
set(FP8TRAIN_MODULES base numeric device tensor ops precision nn model optim comm parallel engine
  data io config wizard train)

# fp8train_module(NAME [COLD] [SOURCES file...] [DEPENDS module...] [LIBRARIES target...]
#                [PRIVATE_LIBRARIES target...])
#
# COLD: no code of it runs for every element or token; a release build compiles it with -O1, in two
# thirds of the time. A sanitized build compiles all modules without loops over elements with -O0. A
# file that has such code is named in the module's CMakeLists.txt.
# One target per module. A module sees only its own headers and those of the modules it names: each
# module's folder is reached through an include directory of its own, so an include that is not
# declared here does not compile.
function(fp8train_module name)
  cmake_parse_arguments(MODULE "COLD" "" "SOURCES;DEPENDS;LIBRARIES;PRIVATE_LIBRARIES" ${ARGN})
  list(FIND FP8TRAIN_MODULES ${name} own_position)
  foreach(module IN LISTS MODULE_DEPENDS)
    list(FIND FP8TRAIN_MODULES ${module} position)
    if(position LESS 0 OR NOT position LESS own_position)
      message(FATAL_ERROR
        "module '${name}' may not depend on '${module}': it does not come before it")
    endif()
  endforeach()

  set(include_root ${CMAKE_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${include_root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${include_root}/${name} SYMBOLIC)

  list(TRANSFORM MODULE_DEPENDS PREPEND fp8train_ OUTPUT_VARIABLE targets)
  if(MODULE_SOURCES)
    add_library(fp8train_${name} STATIC ${MODULE_SOURCES})
    target_include_directories(fp8train_${name} PUBLIC ${include_root})
    target_link_libraries(fp8train_${name} PUBLIC ${targets} ${MODULE_LIBRARIES}
      PRIVATE ${MODULE_PRIVATE_LIBRARIES} fp8train_flags)
    if(MODULE_COLD)
      target_compile_options(fp8train_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    # These have the loops that tests spend their time in.
    if(NOT name MATCHES "^(numeric|tensor|ops|comm)$")
      set_target_properties(fp8train_${name} PROPERTIES FP8TRAIN_COLD ON)
    endif()
    if(name MATCHES "^(device|ops|nn|optim)$")  # no input is read there
      set_target_properties(fp8train_${name} PROPERTIES FP8TRAIN_READS_NO_INPUT ON)
    endif()
  else()
    add_library(fp8train_${name} INTERFACE)
    target_include_directories(fp8train_${name} INTERFACE ${include_root})
    target_link_libraries(fp8train_${name} INTERFACE ${targets} ${MODULE_LIBRARIES})
  endif()
endfunction()

# fp8train_test(MODULE [UNITY] SOURCES file... [DEPENDS module...] [SANITIZED_EVERY n]): the
# unit tests of one module, or of a folder of a module that is among DEPENDS, one program. UNITY:
# with FP8TRAIN_UNITY several of its files are compiled as one, so that no two of them use one name
# for different things. SANITIZED_EVERY: as of fp8train_unit_test().
function(fp8train_test module)
  cmake_parse_arguments(TEST "UNITY" "SANITIZED_EVERY" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_executable(${module}_test ${TEST_SOURCES})
  list(TRANSFORM TEST_DEPENDS PREPEND fp8train_ OUTPUT_VARIABLE targets)
  target_link_libraries(${module}_test PRIVATE $<TARGET_NAME_IF_EXISTS:fp8train_${module}>
    ${targets} fp8train_test_support Catch2::Catch2WithMain ${TEST_LIBRARIES} fp8train_flags)
  target_compile_definitions(${module}_test PRIVATE
    FP8TRAIN_GOLDEN_DIR="${CMAKE_SOURCE_DIR}/tests/golden"
    FP8TRAIN_SHARED_DATA_DIR="${CMAKE_SOURCE_DIR}/../shared/data")
  if(NOT TEST_SANITIZED_EVERY)
    set(TEST_SANITIZED_EVERY 1)
  endif()
  fp8train_unit_test(${module} ${module}_test ${TEST_SANITIZED_EVERY})
  if(NOT module MATCHES "^(numeric|tensor|ops)$")  # whose tests compute
    set_target_properties(${module}_test PROPERTIES FP8TRAIN_COLD ON)
  endif()
  fp8train_precompiled_test_headers(${module}_test)
  if(NOT TEST_UNITY)
    set_target_properties(${module}_test PROPERTIES UNITY_BUILD OFF)
  endif()
endfunction()

# fp8train_unit_test(NAME PROGRAM EVERY [IN_RELEASE]): runs a program of Catch2. In a sanitized
# build one of EVERY test cases, others after each commit (tests/support/share.sh); without a
# sanitizer one of IN_RELEASE where scripts/test.sh runs them, and by hand all.
function(fp8train_unit_test name program every)
  set(all 0)
  if(NOT FP8TRAIN_SANITIZE)
    set(every 1)
    if(ARGC GREATER 3)
      set(every ${ARGV3})
    endif()
    set(all all)
  endif()
  if(every GREATER 1)
    add_test(NAME ${name} COMMAND bash ${CMAKE_SOURCE_DIR}/tests/support/share.sh ${every}
      $<TARGET_FILE:${program}> ${all})
  else()
    add_test(NAME ${name} COMMAND ${program})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS unit)
endfunction()

# fp8train_precompiled_test_headers(PROGRAM): with FP8TRAIN_UNITY the test program's files begin
# with tests/support/precompiled.h, which is parsed once for all programs; in a sanitized build once
# more for those that are compiled as COLD ones. All of them are compiled with OpenMP's option,
# which such headers have to agree in.
function(fp8train_precompiled_test_headers program)
  if(FP8TRAIN_UNITY)
    get_target_property(cold ${program} FP8TRAIN_COLD)
    if(cold AND TARGET fp8train_cold_test_headers)
      target_precompile_headers(${program} REUSE_FROM fp8train_cold_test_headers)
    else()
      target_precompile_headers(${program} REUSE_FROM fp8train_test_headers)
    endif()
    target_link_libraries(${program} PRIVATE $<TARGET_NAME_IF_EXISTS:OpenMP::OpenMP_CXX>)
  endif()
endfunction()
