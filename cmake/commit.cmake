# cmake -DSOURCE=DIR -DOUTPUT=FILE -P commit.cmake: the commit of the sources as a C++ file, which
# is written only where it changes.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                RESULT_VARIABLE failure)
if(failure)
  set(commit "")
endif()
string(CONCAT content
  "namespace fp8train {\n\nextern const char* const kCommit;\n"
  "const char* const kCommit = \"@commit@\";\n\n"
  "}  // namespace fp8train\n")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "${content}" @ONLY)
