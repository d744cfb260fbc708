// Preloaded into a program (LD_PRELOAD): counts its calls on files below one folder, and lets the
// n-th of them fail or end the program. Variables:
//
//   FP8TRAIN_FAULT_FOLDER  the folder, absolute, or how paths begin; calls on other files pass
//   FP8TRAIN_FAULT_LOG     a file elsewhere that gets one line for each call: "NUMBER NAME PATH"
//   FP8TRAIN_FAULT_CALL    which call, from 1; 0 or nothing: none
//   FP8TRAIN_FAULT_RANK    only in this rank of mpirun; nothing: in every process
//   FP8TRAIN_FAULT_EVERY   "NAME TEXT" instead: each call of this name on a path that has the text
//   FP8TRAIN_FAULT_KIND    KILL | TERM   a signal before the call, which TERM then lets pass
//                          EIO, or the name of another error   the call fails
//                          SHORT   a write stores half of its bytes; other calls pass
//                          FLIP    a positioned read sees one bit of the file otherwise
//                          SLOW    the call takes two seconds
//                          HANG    the call never returns, and nor do those after it
//
// The call's line is in the log before anything happens to it.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace {

enum class Kind : uint8_t { none, kill, term, error, shortened, flip, slow, hang };

struct Plan {
  std::string folder;
  int log = -1;
  long call = 0;
  std::string every_name, every_text;
  Kind kind = Kind::none;
  int error = 0;

  bool has(const char* name, const std::string& path, long number) const {
    if (!every_name.empty()) {
      return every_name == name && path.find(every_text) != std::string::npos;
    }
    return call > 0 && (number == call || (kind == Kind::hang && number > call));
  }
};

/// The next definition of a function of libc.
template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void read_kind(const char* name, Plan& read) {
  constexpr std::array<std::pair<std::string_view, Kind>, 6> kKinds = {{{"KILL", Kind::kill},
                                                                        {"TERM", Kind::term},
                                                                        {"SHORT", Kind::shortened},
                                                                        {"FLIP", Kind::flip},
                                                                        {"SLOW", Kind::slow},
                                                                        {"HANG", Kind::hang}}};
  const std::string_view wanted = name == nullptr ? "" : name;
  for (const auto& [known, kind] : kKinds) {
    if (known == wanted) {
      read.kind = kind;
    }
  }
  for (int error = 1; error < 200; ++error) {
    const char* const known = strerrorname_np(error);
    if (known != nullptr && known == wanted) {
      read.kind = Kind::error;
      read.error = error;
    }
  }
}

const Plan& plan() {
  static const Plan kPlan = [] {
    Plan read;
    const char* const folder = std::getenv("FP8TRAIN_FAULT_FOLDER");
    const char* const log = std::getenv("FP8TRAIN_FAULT_LOG");
    const char* const call = std::getenv("FP8TRAIN_FAULT_CALL");
    const char* const wanted_rank = std::getenv("FP8TRAIN_FAULT_RANK");
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const bool is_here =
        wanted_rank == nullptr || (rank != nullptr && std::strcmp(wanted_rank, rank) == 0);
    read.folder = folder == nullptr || !is_here ? "" : folder;
    read.call = call == nullptr ? 0 : std::strtol(call, nullptr, 10);
    read_kind(std::getenv("FP8TRAIN_FAULT_KIND"), read);
    if (const char* const every = std::getenv("FP8TRAIN_FAULT_EVERY")) {
      const std::string words = every;
      read.every_name = words.substr(0, words.find(' '));
      read.every_text = words.substr(words.find(' ') + 1);
    }
    if (log != nullptr) {
      using Open = int (*)(const char*, int, ...);
      read.log = real<Open>("open")(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    return read;
  }();
  return kPlan;
}

std::atomic<long> calls = 0;

bool lies_in_folder(const std::string& path) {
  const std::string& folder = plan().folder;
  return !folder.empty() && path.compare(0, folder.size(), folder) == 0;
}

std::string absolute(const char* path) {
  if (path == nullptr || path[0] == '/') {
    return path == nullptr ? "" : path;
  }
  std::array<char, PATH_MAX> here = {};
  return getcwd(here.data(), here.size()) == nullptr ? path : std::string(here.data()) + "/" + path;
}

std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), path.data(), path.size() - 1);
  return length <= 0 ? "" : std::string(path.data(), static_cast<size_t>(length));
}

std::string path_below(int folder, const char* path) {
  return path[0] == '/' || folder == AT_FDCWD ? absolute(path) : path_of(folder) + "/" + path;
}

/// A call passes, fails (errno is set), writes half of its bytes, or reads with one bit flipped.
enum class Fate : uint8_t { pass, fail, halve, flip };

Fate counted(const char* name, const std::string& path, bool writes = false) {
  if (!lies_in_folder(path)) {
    return Fate::pass;
  }
  const Plan& wanted = plan();
  const long number = ++calls;
  if (wanted.log >= 0) {
    const std::string line = std::to_string(number) + " " + name + " " + path + "\n";
    using Write = ssize_t (*)(int, const void*, size_t);
    static const Write kWrite = real<Write>("write");
    [[maybe_unused]] const ssize_t done = kWrite(wanted.log, line.data(), line.size());
  }
  if (!wanted.has(name, path, number)) {
    return Fate::pass;
  }
  switch (wanted.kind) {
    case Kind::none:
      return Fate::pass;
    case Kind::kill:
      kill(getpid(), SIGKILL);
      pause();
      return Fate::pass;
    case Kind::term:
      kill(getpid(), SIGTERM);
      return Fate::pass;
    case Kind::error:
      errno = wanted.error;
      return Fate::fail;
    case Kind::slow:
      sleep(2);
      return Fate::pass;
    case Kind::hang:
      while (true) {
        pause();
      }
    case Kind::flip:
      return Fate::flip;
    case Kind::shortened:
      return writes ? Fate::halve : Fate::pass;
  }
  return Fate::pass;
}

bool fails(const char* name, const std::string& path) {
  return counted(name, path) == Fate::fail;
}

/// pread(), whose result has another bit at three quarters of the file.
template <class Offset>
ssize_t positioned_read(const char* name, int descriptor, void* to, size_t bytes, Offset offset) {
  const Fate fate = counted("read", path_of(descriptor));
  if (fate == Fate::fail) {
    return -1;
  }
  const ssize_t got =
      real<ssize_t (*)(int, void*, size_t, Offset)>(name)(descriptor, to, bytes, offset);
  struct stat info = {};
  if (fate == Fate::flip && got > 0 && fstat(descriptor, &info) == 0) {
    const off_t at = info.st_size / 4 * 3 - offset;
    if (at >= 0 && at < got) {
      static_cast<unsigned char*>(to)[at] ^= 1U;
    }
  }
  return got;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  if (fails("open", absolute(path))) {
    return -1;
  }
  return real<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  if (fails("open", absolute(path))) {
    return -1;
  }
  return real<int (*)(const char*, int, ...)>("open64")(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  if (fails("open", path_below(folder, path))) {
    return -1;
  }
  return real<int (*)(int, const char*, int, ...)>("openat")(folder, path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  if (fails("open", absolute(path))) {
    return nullptr;
  }
  return real<FILE* (*)(const char*, const char*)>("fopen")(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  if (fails("open", absolute(path))) {
    return nullptr;
  }
  return real<FILE* (*)(const char*, const char*)>("fopen64")(path, mode);
}

ssize_t read(int descriptor, void* to, size_t bytes) {
  if (fails("read", path_of(descriptor))) {
    return -1;
  }
  return real<ssize_t (*)(int, void*, size_t)>("read")(descriptor, to, bytes);
}

ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset) {
  return positioned_read("pread", descriptor, to, bytes, offset);
}

ssize_t pread64(int descriptor, void* to, size_t bytes, off64_t offset) {
  return positioned_read("pread64", descriptor, to, bytes, offset);
}

ssize_t write(int descriptor, const void* from, size_t bytes) {
  const Fate fate = counted("write", path_of(descriptor), true);
  if (fate == Fate::fail) {
    return -1;
  }
  const size_t some = fate == Fate::halve ? (bytes + 1) / 2 : bytes;
  return real<ssize_t (*)(int, const void*, size_t)>("write")(descriptor, from, some);
}

ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  const Fate fate = counted("write", path_of(descriptor), true);
  if (fate == Fate::fail) {
    return -1;
  }
  const size_t some = fate == Fate::halve ? (bytes + 1) / 2 : bytes;
  return real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(descriptor, from, some,
                                                                      offset);
}

ssize_t pwrite64(int descriptor, const void* from, size_t bytes, off64_t offset) {
  const Fate fate = counted("write", path_of(descriptor), true);
  if (fate == Fate::fail) {
    return -1;
  }
  const size_t some = fate == Fate::halve ? (bytes + 1) / 2 : bytes;
  return real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64")(descriptor, from, some,
                                                                          offset);
}

int fsync(int descriptor) {
  return fails("fsync", path_of(descriptor)) ? -1 : real<int (*)(int)>("fsync")(descriptor);
}
int fdatasync(int descriptor) {
  return fails("fsync", path_of(descriptor)) ? -1 : real<int (*)(int)>("fdatasync")(descriptor);
}

int ftruncate(int descriptor, off_t length) {
  return fails("ftruncate", path_of(descriptor))
             ? -1
             : real<int (*)(int, off_t)>("ftruncate")(descriptor, length);
}

int ftruncate64(int descriptor, off64_t length) {
  return fails("ftruncate", path_of(descriptor))
             ? -1
             : real<int (*)(int, off64_t)>("ftruncate64")(descriptor, length);
}

/// A descriptor is closed whatever its close returns.
int close(int descriptor) {
  const Fate fate = counted("close", path_of(descriptor));
  const int error = errno;
  const int result = real<int (*)(int)>("close")(descriptor);
  if (fate == Fate::fail) {
    errno = error;
    return -1;
  }
  return result;
}

int rename(const char* from, const char* to) {
  return fails("rename", absolute(from))
             ? -1
             : real<int (*)(const char*, const char*)>("rename")(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (fails("rename", path_below(from_folder, from))) {
    return -1;
  }
  return real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(
      from_folder, from, to_folder, to, flags);
}

/// flock(), under a name that does not hide struct flock.
int lock_file(int descriptor, int operation) __asm__("flock");
int lock_file(int descriptor, int operation) {
  return fails("flock", path_of(descriptor))
             ? -1
             : real<int (*)(int, int)>("flock")(descriptor, operation);
}

int mkdir(const char* path, mode_t mode) {
  return fails("mkdir", absolute(path)) ? -1
                                        : real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}

int unlink(const char* path) {
  return fails("unlink", absolute(path)) ? -1 : real<int (*)(const char*)>("unlink")(path);
}

int remove(const char* path) {
  return fails("unlink", absolute(path)) ? -1 : real<int (*)(const char*)>("remove")(path);
}

int unlinkat(int folder, const char* path, int flags) {
  return fails("unlink", path_below(folder, path))
             ? -1
             : real<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags);
}

DIR* opendir(const char* path) {
  return fails("opendir", absolute(path)) ? nullptr : real<DIR* (*)(const char*)>("opendir")(path);
}

struct dirent* readdir(DIR* folder) {
  return fails("readdir", path_of(dirfd(folder)))
             ? nullptr
             : real<struct dirent* (*)(DIR*)>("readdir")(folder);
}

struct dirent64* readdir64(DIR* folder) {
  return fails("readdir", path_of(dirfd(folder)))
             ? nullptr
             : real<struct dirent64* (*)(DIR*)>("readdir64")(folder);
}

}  // extern "C"
