# Attention through cuDNN. Building needs two sets of headers and no library: those of
# cudnn-frontend (the folder include of the Python package nvidia-cudnn-frontend, or of its
# repository) and cudnn.h (next to the CUDA toolkit, or from the Python package nvidia-cudnn-cu13).
#   AUTO  use them where they lie in a usual folder (build/cudnn, where scripts/setup.sh --dev puts
#         them, system folders, the environment of VIRTUAL_ENV, the user's Python packages), else do
#         without;
#   a path  the folder that holds cudnn_frontend.h, or the one above its include folder;
#   OFF   do without: attention runs on our own kernels.
set(FP8TRAIN_CUDNN_FRONTEND "AUTO" CACHE STRING
  "Headers of cudnn-frontend for attention through cuDNN: AUTO, a path, OFF")

set(FP8TRAIN_CUDNN_INCLUDES "")
if(FP8TRAIN_CUDNN_FRONTEND STREQUAL "OFF")
  message(STATUS "cuDNN attention: OFF")
  return()
endif()
file(GLOB python_folders /usr/lib/python3*/*-packages /usr/local/lib/python3*/*-packages
  $ENV{VIRTUAL_ENV}/lib/python3*/site-packages
  $ENV{HOME}/.local/lib/python3*/site-packages)
if(FP8TRAIN_CUDNN_FRONTEND STREQUAL "AUTO")
  list(TRANSFORM python_folders APPEND /include OUTPUT_VARIABLE frontend_folders)
  find_path(frontend cudnn_frontend.h HINTS ${CMAKE_SOURCE_DIR}/build/cudnn/include
    PATHS ${frontend_folders} NO_CACHE)
else()
  find_path(frontend cudnn_frontend.h PATHS ${FP8TRAIN_CUDNN_FRONTEND}
    ${FP8TRAIN_CUDNN_FRONTEND}/include NO_DEFAULT_PATH NO_CACHE)
  if(NOT frontend)
    message(FATAL_ERROR
      "FP8TRAIN_CUDNN_FRONTEND: no cudnn_frontend.h in ${FP8TRAIN_CUDNN_FRONTEND} or its "
      "folder include")
  endif()
endif()
list(TRANSFORM python_folders APPEND /nvidia/cudnn/include OUTPUT_VARIABLE cudnn_folders)
find_path(cudnn cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${cudnn_folders}
  ${frontend}/../nvidia/cudnn/include NO_CACHE)
if(frontend AND cudnn)
  set(FP8TRAIN_CUDNN_INCLUDES ${frontend} ${cudnn})
  message(STATUS "cuDNN attention: cudnn-frontend in ${frontend}, cuDNN's headers in ${cudnn}")
elseif(frontend AND NOT FP8TRAIN_CUDNN_FRONTEND STREQUAL "AUTO")
  message(FATAL_ERROR
    "FP8TRAIN_CUDNN_FRONTEND: cudnn-frontend is in ${frontend}, but cudnn.h was not found "
    "next to the CUDA toolkit or Python's packages")
elseif(frontend)
  message(STATUS "cuDNN attention: OFF (cudnn-frontend in ${frontend}, but cudnn.h was not found)")
else()
  message(STATUS
    "cuDNN attention: OFF (cudnn_frontend.h was not found; see FP8TRAIN_CUDNN_FRONTEND)")
endif()
