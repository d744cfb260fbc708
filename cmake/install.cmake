# cmake --install build --prefix DIR: the program, the presets, the job scripts and the documents.
install(TARGETS fp8train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fp8train/configs OPTIONAL)
install(DIRECTORY slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fp8train/slurm FILES_MATCHING
  PATTERN "*.sbatch")
install(DIRECTORY scripts/export/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fp8train/export
  USE_SOURCE_PERMISSIONS FILES_MATCHING PATTERN "*.py")
install(CODE "set(PROGRAM ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:fp8train>)
  set(SOURCE ${CMAKE_SOURCE_DIR})
  set(FOLDER ${CMAKE_BINARY_DIR}/manuals)
  set(DATA ${CMAKE_INSTALL_DATADIR})
  set(MANUALS ${CMAKE_INSTALL_MANDIR})")
install(SCRIPT cmake/manuals.cmake)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" PATTERN "*.jsonl")

# cpack --config build/CPackConfig.cmake: a .deb whose dependencies are read off the program, and an
# archive (scripts/bundle.sh packs libraries too).
set(CPACK_PACKAGE_NAME fp8train)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains transformers in 8-bit floating point")
set(CPACK_PACKAGE_CONTACT "The fp8train developers")
set(CPACK_PACKAGE_VENDOR "fp8train")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_SYSTEM_NAME ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})  # of the archive's name
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
include(CPack)
