# Ranks on GPUs over NCCL (FP8TRAIN_NCCL: AUTO, ON, OFF). Building needs nccl.h alone (next to the
# CUDA toolkit, in a system folder, or from the Python package nvidia-nccl-cu13); the library is
# loaded when ranks on GPUs meet. Only lib/comm/backends/nccl_group.cpp includes nccl.h. In the SHIM
# form a fake that enforces NCCL's rules stands in.
set(FP8TRAIN_NCCL_FOUND OFF)
if(FP8TRAIN_NCCL STREQUAL "OFF" OR FP8TRAIN_CUDA_FORM STREQUAL "OFF")
  if(FP8TRAIN_NCCL STREQUAL "ON")
    message(FATAL_ERROR "FP8TRAIN_NCCL: NCCL needs the cuda backend (FP8TRAIN_CUDA)")
  endif()
elseif(FP8TRAIN_CUDA_FORM STREQUAL "SHIM")
  set(FP8TRAIN_NCCL_FOUND ON)
else()
  file(GLOB nccl_python_folders /usr/lib/python3*/*-packages /usr/local/lib/python3*/*-packages
    $ENV{VIRTUAL_ENV}/lib/python3*/site-packages
    $ENV{HOME}/.local/lib/python3*/site-packages)
  list(TRANSFORM nccl_python_folders APPEND /nvidia/nccl/include)
  find_path(FP8TRAIN_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
    PATHS ${nccl_python_folders})
  if(FP8TRAIN_NCCL_INCLUDE)
    set(FP8TRAIN_NCCL_FOUND ON)
  elseif(FP8TRAIN_NCCL STREQUAL "ON")
    message(FATAL_ERROR
      "FP8TRAIN_NCCL: nccl.h was not found next to the CUDA toolkit or Python's packages "
      "(Debian and Ubuntu: libnccl-dev)")
  endif()
endif()
message(STATUS "NCCL: ${FP8TRAIN_NCCL_FOUND}")
