# Kernels that are compiled once per level of processors and chosen at run time.
#
# FP8TRAIN_CPU_LEVELS: the levels of the architecture, the lowest first, by their names for -march;
# numeric/cpu_isa.h has the same list with what each asks of a processor. A new level is a name in
# both. FP8TRAIN_CPU_ISAS names those that are built: ALL, COMMON (the highest that nearly every
# machine has) or a list.
#
# fp8train_isa_sources(TARGET file.cpp...): compiles the files for every level of FP8TRAIN_CPU_ISAS
# and adds the objects to TARGET, a module made by fp8train_module. To be called once per target,
# after fp8train_module. A kernel file
#   - keeps its code in `namespace fp8train::FP8TRAIN_ISA_NS` (isa_x86_64_v3, isa_armv8_a, ...) or
#     an anonymous namespace inside it;
#   - uses only always-inlined helpers (FP8TRAIN_HD) and no std:: templates: a function emitted out
#     of line is shared between levels by the linker, and the copy for a higher level could end up
#     in the program of a lower machine;
#   - knows its level by the compiler's macros (__AVX512F__, __ARM_NEON);
#   - defines functions of a table; one of the files exposes it, `const Table& name()`, which
#     FP8TRAIN_ISA_TABLES of numeric/isa_tables.h picks up.
# TARGET's other sources see FP8TRAIN_BUILT_x86_64_v3 and so on as 1 for the levels built and as 0
# for the others. The vectorizer needs -fno-math-errno -fno-trapping-math, which change no result;
# -ffp-contract=off stays.
# -Wno-psabi: vectors are passed only to inlined functions and to lambdas of a level's namespace,
# which have the flags of their callers. Sanitized kernels are built without the vectorizer: with it
# they take five times as long to compile. The lowest level of x86-64, of processors from before
# 2013, is built with -O2: a third of the time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(FP8TRAIN_CPU_LEVELS x86-64 x86-64-v3 x86-64-v4)
  set(common x86-64-v3)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(FP8TRAIN_CPU_LEVELS armv8-a)
  set(common armv8-a)
  # A plain char has no sign there by default. GCC 12 takes the last extent of a shape for one
  # out of bounds.
  target_compile_options(fp8train_flags INTERFACE
    $<IF:$<COMPILE_LANGUAGE:CUDA>,-Xcompiler=,>-fsigned-char
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds>)
else()
  message(FATAL_ERROR "fp8train is built for x86-64 and aarch64, not ${CMAKE_SYSTEM_PROCESSOR}")
endif()
string(REGEX REPLACE "^ALL$" "${FP8TRAIN_CPU_LEVELS}" FP8TRAIN_BUILT_LEVELS "${FP8TRAIN_CPU_ISAS}")
string(REGEX REPLACE "^COMMON$" ${common} FP8TRAIN_BUILT_LEVELS "${FP8TRAIN_BUILT_LEVELS}")
foreach(isa IN LISTS FP8TRAIN_BUILT_LEVELS)
  if(NOT isa IN_LIST FP8TRAIN_CPU_LEVELS)
    list(JOIN FP8TRAIN_CPU_LEVELS ", " names)
    message(FATAL_ERROR "FP8TRAIN_CPU_ISAS: '${isa}' is none of ALL, COMMON, ${names}")
  endif()
endforeach()

set(FP8TRAIN_ISA_FLAGS -O3 -fno-math-errno -fno-trapping-math -Wno-psabi)
if(FP8TRAIN_SANITIZE)
  list(TRANSFORM FP8TRAIN_ISA_FLAGS REPLACE -O3 -O1)
endif()

function(fp8train_isa_sources target)
  foreach(isa IN LISTS FP8TRAIN_CPU_LEVELS)
    string(MAKE_C_IDENTIFIER ${isa} identifier)
    if(NOT isa IN_LIST FP8TRAIN_BUILT_LEVELS)
      target_compile_definitions(${target} PRIVATE FP8TRAIN_BUILT_${identifier}=0)
      continue()
    endif()
    set(flags ${FP8TRAIN_ISA_FLAGS} -march=${isa})
    if(isa STREQUAL "x86-64")
      list(TRANSFORM flags REPLACE -O3 -O2)
    elseif(isa STREQUAL "x86-64-v4")
      list(APPEND flags -mprefer-vector-width=512)
    endif()
    set(objects ${target}_isa_${identifier})
    add_library(${objects} OBJECT ${ARGN})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS> ${flags})
    target_compile_definitions(${objects} PRIVATE FP8TRAIN_ISA_NS=isa_${identifier})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
    target_compile_definitions(${target} PRIVATE FP8TRAIN_BUILT_${identifier}=1)
  endforeach()
endfunction()
