#pragma once
// NVIDIA's libraries that the program does not link but opens when they are first needed, so that
// it starts on machines without them. Folders are searched in this order:
//
//   1. those of LD_LIBRARY_PATH, and lib next to the program's folder (scripts/bundle.sh);
//   2. NVIDIA's Python packages (nvidia/*/lib in site-packages) of VIRTUAL_ENV and of CONDA_PREFIX;
//      CONDA_PREFIX/lib; the packages of the python3 on PATH (also pyenv's) and the user's own;
//   3. lib64 and lib of CUDA_HOME, CUDA_PATH and /usr/local/cuda;
//   4. what the system's loader finds by name.
//
// Python is not started. A library that is opened stays open to the end of the program.

#include <cstdint>
#include <string>
#include <vector>

namespace fp8train {

enum class CudaLibrary : uint8_t { cublaslt, cudnn, nccl, runtime };
constexpr int kCudaLibraries = 4;

/// A folder that may hold libraries.
struct LibraryFolder {
  std::string path;
  std::string origin;  ///< what names it: "VIRTUAL_ENV", "python3 in /usr/bin", ...
};
/// Returns the folders of 1 to 3 that exist, by the environment as it is now.
std::vector<LibraryFolder> library_folders();

/// A library that was searched for, and the result.
struct OpenedLibrary {
  void* handle = nullptr;  ///< null: not found
  std::string file;        ///< its path, or its name if the loader found it
  std::string origin;      ///< why its folder was searched
  std::string why_not;  ///< folders that were searched and what to install, or why it does not load
};

/// Searches for the library, each time it is called.
OpenedLibrary open_cuda_library(CudaLibrary library);
/// Searches for the library the first time it is called. Any thread may call it.
const OpenedLibrary& cuda_library(CudaLibrary library);

/// Opens the library and returns a line with its version and file, or with the folders that were
/// searched.
std::string describe_cuda_library(CudaLibrary library);
/// Returns such a line for each library.
std::vector<std::string> describe_cuda_libraries();

}  // namespace fp8train
