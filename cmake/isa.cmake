# Kernels that are compiled once per x86-64 level and chosen at run time.
#
# fp8train_isa_sources(TARGET file.cpp...): compiles the files for every level of FP8TRAIN_CPU_ISAS
# and adds the objects to TARGET, a module made by fp8train_module. To be called once per target,
# after fp8train_module. A kernel file
#   - keeps its code in `namespace fp8train::FP8TRAIN_ISA_NS` (isa_v1, isa_v3 or isa_v4) or an
#     anonymous namespace inside it;
#   - uses only always-inlined helpers (FP8TRAIN_HD) and no std:: templates: a function emitted out
#     of line is shared between levels by the linker, and the copy for a higher level could end up
#     in the program of a lower machine;
#   - defines functions of a table; one of the files exposes it, `const Table& name()`, which
#     FP8TRAIN_ISA_TABLES of numeric/isa_tables.h picks up.
# It sees FP8TRAIN_ISA_LEVEL as 1, 3 or 4. TARGET's other sources see FP8TRAIN_HAVE_BASELINE,
# FP8TRAIN_HAVE_V3 and FP8TRAIN_HAVE_V4 for the levels built. The vectorizer needs -fno-math-errno
# -fno-trapping-math, which change no result; -ffp-contract=off stays.
# -Wno-psabi: vectors are passed only to inlined functions and to lambdas of a level's namespace,
# which have the flags of their callers. Sanitized kernels are built without the vectorizer: with it
# they take five times as long to compile. The lowest level, of processors from before 2013, is
# built with -O2: a third of the time.
set(FP8TRAIN_ISA_FLAGS -O3 -fno-math-errno -fno-trapping-math -Wno-psabi)
if(FP8TRAIN_SANITIZE)
  list(TRANSFORM FP8TRAIN_ISA_FLAGS REPLACE -O3 -O1)
endif()

function(fp8train_isa_sources target)
  foreach(isa IN LISTS FP8TRAIN_CPU_ISAS)
    set(flags ${FP8TRAIN_ISA_FLAGS} -march=${isa})
    if(isa STREQUAL "x86-64")
      set(level 1)
      set(have FP8TRAIN_HAVE_BASELINE)
      list(TRANSFORM flags REPLACE -O3 -O2)
    elseif(isa STREQUAL "x86-64-v3")
      set(level 3)
      set(have FP8TRAIN_HAVE_V3)
    elseif(isa STREQUAL "x86-64-v4")
      set(level 4)
      set(have FP8TRAIN_HAVE_V4)
      list(APPEND flags -mprefer-vector-width=512)
    else()
      message(FATAL_ERROR "FP8TRAIN_CPU_ISAS: '${isa}' is none of x86-64, x86-64-v3, x86-64-v4")
    endif()
    set(objects ${target}_isa_v${level})
    add_library(${objects} OBJECT ${ARGN})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS> ${flags})
    target_compile_definitions(${objects} PRIVATE FP8TRAIN_ISA_NS=isa_v${level}
      FP8TRAIN_ISA_LEVEL=${level})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
    target_compile_definitions(${target} PRIVATE ${have})
  endforeach()
endfunction()
