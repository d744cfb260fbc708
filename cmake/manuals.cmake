# cmake -DPROGRAM=[EMULATOR;]FILE -DFOLDER=DIR -P manuals.cmake: the manual page and the completion
# scripts, as the program prints them.
set(ENV{ASAN_OPTIONS} detect_leaks=0)  # tests look for leaks
file(MAKE_DIRECTORY ${FOLDER})
function(write_output file)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${FOLDER}/${file} RESULT_VARIABLE failure)
  if(failure)
    message(FATAL_ERROR "${PROGRAM} ${ARGN} has failed: ${failure}")
  endif()
endfunction()
write_output(fp8train.1 man)
write_output(fp8train completions bash)
write_output(_fp8train completions zsh)
write_output(fp8train.fish completions fish)
