// The search for NVIDIA's libraries among folders made for the test. The libraries are small shared
// objects without functions of NVIDIA.

#include "device/cuda/cuda_libraries.h"

#include <dlfcn.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/environment.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;
using test::EnvironmentScope;

/// None of the variables that are looked at leads anywhere.
struct BareEnvironment {
  EnvironmentScope loader{"LD_LIBRARY_PATH", nullptr}, virtual_env{"VIRTUAL_ENV", nullptr},
      conda{"CONDA_PREFIX", nullptr}, path{"PATH", "/nowhere"}, home{"HOME", nullptr},
      pyenv{"PYENV_VERSION", nullptr}, cuda_home{"CUDA_HOME", nullptr},
      cuda_path{"CUDA_PATH", nullptr};
};

void put_library(const fs::path& folder, const char* name) {
  fs::create_directories(folder);
  fs::copy_file(FP8TRAIN_SMALL_LIBRARY, folder / name);  // of a module built for this test
}

fs::path packages_of(const fs::path& prefix) {
  return prefix / "lib/python3.12/site-packages/nvidia";
}

void put_file(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

/// The file that is opened, relative to `folder`; else why there is none.
std::string opened(const fs::path& folder, CudaLibrary library = CudaLibrary::cublaslt) {
  const OpenedLibrary found = open_cuda_library(library);
  if (found.handle == nullptr) {
    return found.why_not;
  }
  CHECK(dlsym(found.handle, "fp8train_small_library") != nullptr);
  dlclose(found.handle);
  return fs::path(found.file).lexically_relative(folder).string();
}

TEST_CASE("libraries are searched in the order that is documented") {
  const BareEnvironment bare;
  const test::TempDir folder;
  put_library(folder / "loader", "libcublasLt.so.13");
  put_library(packages_of(folder / "venv") / "cu13/lib", "libcublasLt.so.13");
  put_library(folder / "conda/lib", "libcublasLt.so.13");
  put_library(packages_of(folder / "python") / "cublas/lib", "libcublasLt.so.13");
  put_file(folder / "python/bin/python3", "");
  put_library(folder / "home/lib64", "libcublasLt.so.13");
  put_library(folder / "toolkit/lib64", "libcublasLt.so.13");

  const auto at = [&](const char* name) { return (folder / name).string(); };
  const EnvironmentScope cuda_path("CUDA_PATH", at("toolkit").c_str());
  CHECK(opened(folder.path()) == "toolkit/lib64/libcublasLt.so.13");
  const EnvironmentScope cuda_home("CUDA_HOME", at("home").c_str());
  CHECK(opened(folder.path()) == "home/lib64/libcublasLt.so.13");
  const EnvironmentScope path("PATH", ("/nowhere::" + at("python/bin")).c_str());
  CHECK(opened(folder.path()) ==
        "python/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.13");
  const EnvironmentScope conda("CONDA_PREFIX", at("conda").c_str());
  CHECK(opened(folder.path()) == "conda/lib/libcublasLt.so.13");
  const EnvironmentScope venv("VIRTUAL_ENV", at("venv").c_str());
  CHECK(opened(folder.path()) ==
        "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13");
  const EnvironmentScope loader("LD_LIBRARY_PATH", ("/nowhere:" + at("loader")).c_str());
  CHECK(opened(folder.path()) == "loader/libcublasLt.so.13");
}

TEST_CASE("a python3 that is a link stands for the installation that it leads to") {
  const BareEnvironment bare;
  const test::TempDir folder;
  put_file(folder / "real/bin/python3.12", "");
  put_library(packages_of(folder / "real") / "nccl/lib", "libnccl.so.2");
  fs::create_directories(folder / "bin");
  fs::create_symlink(folder / "real/bin/python3.12", folder / "bin/python3");
  const EnvironmentScope path("PATH", (folder / "bin").c_str());
  CHECK(opened(folder.path(), CudaLibrary::nccl) ==
        "real/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
}

TEST_CASE("pyenv's python3 stands for the version that it starts") {
  const BareEnvironment bare;
  const test::TempDir folder;
  put_file(folder / "pyenv/shims/python3", "#!/bin/sh");
  put_file(folder / "pyenv/version", "3.12.1\n");
  put_library(packages_of(folder / "pyenv/versions/3.12.1") / "nccl/lib", "libnccl.so.2");
  put_library(packages_of(folder / "pyenv/versions/other") / "nccl/lib", "libnccl.so.2");
  const EnvironmentScope path("PATH", (folder / "pyenv/shims").c_str());
  const std::string rest = "/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
  CHECK(opened(folder.path(), CudaLibrary::nccl) == "pyenv/versions/3.12.1" + rest);
  const EnvironmentScope version("PYENV_VERSION", "other:3.12.1");
  CHECK(opened(folder.path(), CudaLibrary::nccl) == "pyenv/versions/other" + rest);
}

TEST_CASE("a virtual environment shares the packages of its base only where it says so") {
  const BareEnvironment bare;
  const test::TempDir folder;
  put_file(folder / "base/bin/python3.12", "");
  put_library(packages_of(folder / "base") / "cu13/lib", "libcublasLt.so.13");
  fs::create_directories(folder / "env/bin");
  fs::create_directories(packages_of(folder / "env"));
  fs::create_symlink(folder / "base/bin/python3.12", folder / "env/bin/python3");
  const EnvironmentScope path("PATH", (folder / "env/bin").c_str());
  const std::string home = "home = " + (folder / "base/bin").string() + "\n";
  const auto has_base = [&] {
    const std::vector<LibraryFolder> folders = library_folders();
    return std::any_of(folders.begin(), folders.end(), [&](const LibraryFolder& one) {
      return one.path.starts_with((folder / "base").string());
    });
  };
  put_file(folder / "env/pyvenv.cfg", home + "include-system-site-packages = false\n");
  CHECK(!has_base());
  put_file(folder / "env/pyvenv.cfg", home + "include-system-site-packages = true\n");
  CHECK(has_base());
}

TEST_CASE("a library that is missing or broken is reported with all paths") {
  const BareEnvironment bare;
  const test::TempDir folder;
  put_file(folder / "bad/libnccl.so.2", "no library");
  put_library(folder / "good", "libnccl.so.2");
  const std::string both = (folder / "bad").string() + ":" + (folder / "good").string();
  {
    const EnvironmentScope loader("LD_LIBRARY_PATH", both.c_str());
    CHECK(opened(folder.path(), CudaLibrary::nccl) == "good/libnccl.so.2");
  }
  const EnvironmentScope loader("LD_LIBRARY_PATH", (folder / "bad").c_str());
  const OpenedLibrary found = open_cuda_library(CudaLibrary::nccl);
  if (found.handle != nullptr) {  // one of this machine
    CHECK(found.file.find(folder.path().string()) == std::string::npos);
    return;
  }
  CHECK_THAT(found.why_not, Catch::Contains("bad/libnccl.so.2 does not load") &&
                                Catch::Contains("nvidia-nccl-cu13") &&
                                Catch::Contains("(LD_LIBRARY_PATH), "));
}

TEST_CASE("each library is described in a line") {
  const std::vector<std::string> lines = describe_cuda_libraries();
  REQUIRE(lines.size() == kCudaLibraries);
  CHECK(lines[0].starts_with("cuBLASLt: "));
  CHECK(lines[1].starts_with("cuDNN: "));
  for (const std::string& line : lines) {
    const bool found = line.find("(from ") != std::string::npos;
    CHECK(found != (line.find("is not found") != std::string::npos));
  }
}

}  // namespace
}  // namespace fp8train
