# Run by `cmake --install` and cpack with PROGRAM ([EMULATOR;]FILE), SOURCE, FOLDER (to write to and
# remove), DATA and MANUALS (to install into): the completion scripts as the program prints them,
# and its manual page where there is help2man.
cmake_path(ABSOLUTE_PATH DATA BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX})
cmake_path(ABSOLUTE_PATH MANUALS BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX})
set(ENV{ASAN_OPTIONS} detect_leaks=0)  # tests look for leaks
file(MAKE_DIRECTORY ${FOLDER})
foreach(script "bash fp8train bash-completion/completions" "zsh _fp8train zsh/vendor-completions"
        "fish fp8train.fish fish/vendor_completions.d")
  string(REPLACE " " ";" script ${script})
  list(GET script 0 shell)
  list(GET script 1 name)
  list(GET script 2 destination)
  execute_process(COMMAND ${PROGRAM} completions ${shell} OUTPUT_FILE ${FOLDER}/${name}
    COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL ${FOLDER}/${name} DESTINATION ${DATA}/${destination})
endforeach()
find_program(FP8TRAIN_HELP2MAN help2man)
if(FP8TRAIN_HELP2MAN)
  execute_process(COMMAND bash ${SOURCE}/packaging/manual.sh ${FOLDER}/fp8train.1 ${PROGRAM}
    COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL ${FOLDER}/fp8train.1 DESTINATION ${MANUALS}/man1)
else()
  message(STATUS "no manual page: help2man is not installed")
endif()
file(REMOVE_RECURSE ${FOLDER})
