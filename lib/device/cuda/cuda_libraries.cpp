#include "device/cuda/cuda_libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/text.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

struct Facts {
  const char* title;
  const char* file;
  const char* remedy;
  int mode;
  const char* version_function;
  bool returns_version;  ///< else it writes an int
  int major_unit, minor_unit;
};
constexpr Facts kFacts[kCudaLibraries] = {
    {"cuBLASLt", "libcublasLt.so.13",
     "install the cuBLAS of CUDA 13 (package libcublas-13-0, or the Python package nvidia-cublas)",
     RTLD_NOW | RTLD_LOCAL, "cublasLtGetVersion", true, 10000, 100},
    // The parts of cuDNN call each other through the global scope.
    {"cuDNN", "libcudnn.so.9",
     "install cuDNN 9 for CUDA 13 (package cudnn9-cuda-13, or the Python package "
     "nvidia-cudnn-cu13)",
     RTLD_NOW | RTLD_GLOBAL, "cudnnGetVersion", true, 10000, 100},
    {"NCCL", "libnccl.so.2",
     "install NCCL for CUDA 13 (package libnccl2, or the Python package nvidia-nccl-cu13)",
     RTLD_NOW | RTLD_LOCAL, "ncclGetVersion", false, 10000, 100},
    {"CUDA runtime", "libcudart.so.13",
     "install the runtime of CUDA 13 (package cuda-cudart-13-0, or the Python package "
     "nvidia-cuda-runtime)",
     RTLD_NOW | RTLD_GLOBAL, "cudaRuntimeGetVersion", false, 1000, 10}};

const Facts& facts(CudaLibrary library) {
  return kFacts[static_cast<size_t>(library)];
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns the folders in `parent` whose names start with `prefix`, the last name first: python3.12
/// before python3.11.
std::vector<fs::path> folders_in(const fs::path& parent, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().filename().string().starts_with(prefix) && entry->is_directory(ignored)) {
      found.push_back(entry->path());
    }
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

class Folders {
 public:
  void add(const fs::path& folder, const std::string& origin) {
    std::error_code error;
    const bool is_new = std::none_of(found_.begin(), found_.end(), [&](const LibraryFolder& one) {
      return one.path == folder.string();
    });
    if (is_new && fs::is_directory(folder, error)) found_.push_back({folder.string(), origin});
  }
  /// Adds the libraries in `packages`, a folder site-packages.
  void add_packages(const fs::path& packages, const std::string& origin) {
    for (const fs::path& package : folders_in(packages / "nvidia", "")) {
      add(package / "lib", origin);
    }
  }
  /// Adds the packages of the Python installation or environment in `prefix`. Debian has its own
  /// names for folders.
  void add_python(const fs::path& prefix, const std::string& origin) {
    for (const char* lib : {"lib", "lib64", "local/lib"}) {
      for (const fs::path& python : folders_in(prefix / lib, "python3")) {
        add_packages(python / "site-packages", origin);
        add_packages(python / "dist-packages", origin);
      }
    }
  }
  std::vector<LibraryFolder> take() { return std::move(found_); }

 private:
  std::vector<LibraryFolder> found_;
};

/// Returns the first python3 on the PATH; links are not resolved.
std::optional<fs::path> python_on_path() {
  for (const std::string& folder : split(variable("PATH"), ':')) {
    if (folder.empty()) continue;
    std::error_code error;
    const fs::path file = fs::path(folder) / "python3";
    if (fs::is_regular_file(file, error)) return file;
  }
  return std::nullopt;
}

/// Returns a value of pyvenv.cfg, whose lines are "key = value", or an empty text.
std::string environment_value(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    if (trimmed(line.substr(0, equals)) == key) return trimmed(line.substr(equals + 1));
  }
  return {};
}

/// Returns the folder of the version that pyenv's scripts named python3 (ROOT/shims) start: the
/// first one of PYENV_VERSION or of ROOT/version. Empty for other programs.
fs::path pyenv_prefix(const fs::path& python) {
  const fs::path root = python.parent_path().parent_path();
  std::string version = variable("PYENV_VERSION");
  if (version.empty()) std::getline(std::ifstream(root / "version"), version);
  const fs::path prefix = root / "versions" / version.substr(0, version.find(':'));
  std::error_code error;
  const bool is_pyenv = python.parent_path().filename() == "shims" && !version.empty() &&
                        fs::is_directory(prefix, error);
  return is_pyenv ? prefix : fs::path();
}

/// An environment made by venv has a pyvenv.cfg next to bin, and may share the packages of the
/// installation in whose folder of programs it was made.
void add_python_on_path(Folders& folders) {
  const std::optional<fs::path> python = python_on_path();
  if (!python) return;
  const std::string origin = "python3 in " + python->parent_path().string();
  std::error_code error;
  const fs::path pyenv = pyenv_prefix(*python);
  const fs::path environment = pyenv.empty() ? python->parent_path().parent_path() : pyenv;
  const fs::path configuration = environment / "pyvenv.cfg";
  if (fs::is_regular_file(configuration, error)) {
    folders.add_python(environment, origin);
    if (environment_value(configuration, "include-system-site-packages") != "true") return;
    const fs::path home = environment_value(configuration, "home");
    if (!home.empty()) folders.add_python(home.parent_path(), origin);
  } else {
    const fs::path real = fs::canonical(*python, error);
    folders.add_python(environment, origin);
    folders.add_python(error ? environment : real.parent_path().parent_path(), origin);
  }
  if (const std::string home = variable("HOME"); !home.empty()) {
    folders.add_python(fs::path(home) / ".local", "the user's Python packages");
  }
}

/// Returns the first of `folders` that has `name`.
const LibraryFolder* folder_of(const std::vector<LibraryFolder>& folders, const std::string& name) {
  const auto found = std::find_if(folders.begin(), folders.end(), [&](const LibraryFolder& folder) {
    std::error_code error;
    return fs::exists(fs::path(folder.path) / name, error);
  });
  return found == folders.end() ? nullptr : &*found;
}

/// Opens the libraries that cuDNN opens by name, which neither its folder nor the loader may have:
/// the compiler of its kernels, and the libraries that it needs.
void open_compiler(const std::vector<LibraryFolder>& folders) {
  constexpr const char* kCompiler = "libnvrtc.so.13";
  const LibraryFolder* folder = folder_of(folders, kCompiler);
  if (folder == nullptr) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder->path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with("libnvrtc-builtins.so.13")) {
      dlopen(entry->path().c_str(), RTLD_LAZY | RTLD_GLOBAL);
    }
  }
  dlopen((fs::path(folder->path) / kCompiler).c_str(), RTLD_LAZY | RTLD_GLOBAL);
}

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "an unknown error" : text;
}

std::string searched(const std::vector<LibraryFolder>& folders) {
  std::string text;
  for (const LibraryFolder& folder : folders) {
    text += fmt::format("{} ({}), ", folder.path, folder.origin);
  }
  return text + "the system's loader";
}

std::string version_of(const Facts& library, void* handle) {
  void* function = dlsym(handle, library.version_function);
  if (function == nullptr) return "?";
  int version = 0;
  if (library.returns_version) {
    version = static_cast<int>(reinterpret_cast<size_t (*)()>(function)());
  } else {
    reinterpret_cast<int (*)(int*)>(function)(&version);
  }
  const int major = version / library.major_unit;
  const int minor = version % library.major_unit / library.minor_unit;
  return fmt::format("{}.{}.{}", major, minor, version % library.minor_unit);
}

}  // namespace

std::vector<LibraryFolder> library_folders() {
  Folders folders;
  for (const std::string& folder : split(variable("LD_LIBRARY_PATH"), ':')) {
    folders.add(folder, "LD_LIBRARY_PATH");
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.add(program.parent_path().parent_path() / "lib", "the program's lib folder");
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string prefix = variable(name); !prefix.empty()) {
      folders.add_python(prefix, name);
    }
  }
  if (const std::string prefix = variable("CONDA_PREFIX"); !prefix.empty()) {
    folders.add(fs::path(prefix) / "lib", "CONDA_PREFIX");
  }
  add_python_on_path(folders);
  const auto add_toolkit = [&](const std::string& toolkit, const char* origin) {
    for (const char* lib : {"lib64", "lib"}) {
      if (!toolkit.empty()) folders.add(fs::path(toolkit) / lib, origin);
    }
  };
  add_toolkit(variable("CUDA_HOME"), "CUDA_HOME");
  add_toolkit(variable("CUDA_PATH"), "CUDA_PATH");
  add_toolkit("/usr/local/cuda", "the CUDA toolkit");
  return folders.take();
}

OpenedLibrary open_cuda_library(CudaLibrary library) {
  const Facts& wanted = facts(library);
  const std::vector<LibraryFolder> folders = library_folders();
  OpenedLibrary opened;
  std::string broken;
  for (const LibraryFolder& folder : folders) {
    const fs::path file = fs::path(folder.path) / wanted.file;
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    opened.handle = dlopen(file.c_str(), wanted.mode);
    if (opened.handle != nullptr) {
      opened.file = file.string();
      opened.origin = folder.origin;
      break;
    }
    broken += fmt::format("{} does not load: {}; ", file.string(), loader_error());
  }
  if (opened.handle == nullptr) {
    opened.handle = dlopen(wanted.file, wanted.mode);
    opened.file = wanted.file;
    opened.origin = "the system's loader";
  }
  if (opened.handle == nullptr) {
    return {.why_not = fmt::format("{}{} is not found; {}, or put its folder into LD_LIBRARY_PATH; "
                                   "looked for in {}",
                                   broken, wanted.file, wanted.remedy, searched(folders))};
  }
  if (library == CudaLibrary::cudnn) open_compiler(folders);
  return opened;
}

const OpenedLibrary& cuda_library(CudaLibrary library) {
  static std::array<std::once_flag, kCudaLibraries> once;
  static std::array<OpenedLibrary, kCudaLibraries> opened;
  const auto index = static_cast<size_t>(library);
  std::call_once(once[index], [&] { opened[index] = open_cuda_library(library); });
  return opened[index];
}

std::string describe_cuda_library(CudaLibrary library) {
  const OpenedLibrary& opened = cuda_library(library);
  const std::string text =
      opened.handle == nullptr
          ? opened.why_not
          : fmt::format("{} {} (from {})", version_of(facts(library), opened.handle), opened.file,
                        opened.origin);
  return fmt::format("{}: {}", facts(library).title, text);
}

std::vector<std::string> describe_cuda_libraries() {
  std::vector<std::string> lines;
  for (int i = 0; i < kCudaLibraries; ++i) {
    lines.push_back(describe_cuda_library(static_cast<CudaLibrary>(i)));
  }
  return lines;
}

}  // namespace fp8train
