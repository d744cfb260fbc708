# cmake -DSOURCE=DIR -DOUTPUT=FILE -P commit.cmake: the commit of the sources as a C++ file, which
# is written only where it changes.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                RESULT_VARIABLE failure)
if(failure)
  set(commit "")
endif()
execute_process(COMMAND git -C ${SOURCE} log -1 --format=%cs OUTPUT_VARIABLE date
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
string(CONCAT content
  "#include \"commit.h\"\n\nnamespace fp8train {\n\n"
  "const char* const kCommit = \"@commit@\";\nconst char* const kCommitDate = \"@date@\";\n\n"
  "}  // namespace fp8train\n")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "${content}" @ONLY)
