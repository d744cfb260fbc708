// Preloaded into a program (LD_PRELOAD): records what it changes on the disk below one folder.
// Variables:
//
//   FP8TRAIN_TRACE_FOLDER   the folder, absolute
//   FP8TRAIN_TRACE          the file of records: "NAME OFFSET BYTES PATH\n", and behind it BYTES
//                           bytes of what was written, or the new path of a rename
//
// Names: create (a file that was not there, or loses its content), write, truncate, sync, rename,
// mkdir, remove. A record is made when the call has succeeded.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

namespace {

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), path.data(), path.size() - 1);
  return length <= 0 ? "" : std::string(path.data(), static_cast<size_t>(length));
}

std::string path_in(int folder, const char* path) {
  if (path[0] == '/') return path;
  if (folder != AT_FDCWD) return path_of(folder) + "/" + path;
  std::array<char, PATH_MAX> here = {};
  return std::string(getcwd(here.data(), here.size())) + "/" + path;
}

void write_all(int descriptor, std::string_view bytes) {
  static const auto kWrite = real<ssize_t (*)(int, const void*, size_t)>("write");
  while (!bytes.empty()) {
    const ssize_t done = kWrite(descriptor, bytes.data(), bytes.size());
    if (done <= 0) abort();
    bytes.remove_prefix(static_cast<size_t>(done));
  }
}

void record(const char* name, const std::string& path, long offset = 0,
            std::string_view bytes = {}) {
  static const char* const kFolder = std::getenv("FP8TRAIN_TRACE_FOLDER");
  static const int kFile = [] {
    using Open = int (*)(const char*, int, ...);
    const char* const file = std::getenv("FP8TRAIN_TRACE");
    return file == nullptr
               ? -1
               : real<Open>("open")(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }();
  static std::mutex mutex;
  if (kFolder == nullptr || kFile < 0 || !path.starts_with(kFolder)) return;
  const std::lock_guard lock(mutex);
  write_all(kFile, std::string(name) + " " + std::to_string(offset) + " " +
                       std::to_string(bytes.size()) + " " + path + "\n");
  write_all(kFile, bytes);
}

int opened(int folder, const char* path, int flags, const char* function, mode_t mode) {
  const std::string whole = path_in(folder, path);
  struct stat info = {};
  const bool is_new = stat(whole.c_str(), &info) != 0;
  const int descriptor =
      function[4] == 'a'  // openat
          ? real<int (*)(int, const char*, int, ...)>(function)(folder, path, flags, mode)
          : real<int (*)(const char*, int, ...)>(function)(path, flags, mode);
  const bool empties = (flags & O_TRUNC) != 0 && (flags & O_ACCMODE) != O_RDONLY;
  if (descriptor >= 0 && ((is_new && (flags & O_CREAT) != 0) || empties)) record("create", whole);
  return descriptor;
}

template <class Write>
ssize_t written(int descriptor, const void* from, const Write& write) {
  const ssize_t done = write();
  if (done > 0) {
    const off_t end = lseek(descriptor, 0, SEEK_CUR);
    record("write", path_of(descriptor), end - done,
           {static_cast<const char*>(from), static_cast<size_t>(done)});
  }
  return done;
}

int synced(int descriptor, const char* function) {
  const int result = real<int (*)(int)>(function)(descriptor);
  if (result == 0) record("sync", path_of(descriptor));
  return result;
}

int renamed(const std::string& from, const std::string& to, int result) {
  if (result == 0) record("rename", from, 0, to);
  return result;
}

int removed(const std::string& path, int result) {
  if (result == 0) record("remove", path);
  return result;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

#define FP8TRAIN_OPEN(name)                            \
  int name(const char* path, int flags, ...) {         \
    va_list arguments;                                 \
    va_start(arguments, flags);                        \
    const mode_t mode = mode_of(flags, arguments);     \
    va_end(arguments);                                 \
    return opened(AT_FDCWD, path, flags, #name, mode); \
  }

extern "C" {

FP8TRAIN_OPEN(open)
FP8TRAIN_OPEN(open64)

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(folder, path, flags, "openat", mode);
}

ssize_t write(int descriptor, const void* from, size_t bytes) {
  return written(descriptor, from, [&] {
    return real<ssize_t (*)(int, const void*, size_t)>("write")(descriptor, from, bytes);
  });
}
ssize_t pwrite64(int descriptor, const void* from, size_t bytes, off64_t offset) {
  const ssize_t done = real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64")(
      descriptor, from, bytes, offset);
  if (done > 0) {
    record("write", path_of(descriptor), offset,
           {static_cast<const char*>(from), static_cast<size_t>(done)});
  }
  return done;
}
ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  return pwrite64(descriptor, from, bytes, offset);
}
int ftruncate(int descriptor, off_t length) {
  const int result = real<int (*)(int, off_t)>("ftruncate")(descriptor, length);
  if (result == 0) record("truncate", path_of(descriptor), length);
  return result;
}
int ftruncate64(int descriptor, off64_t length) {
  return ftruncate(descriptor, length);
}
int fsync(int descriptor) {
  return synced(descriptor, "fsync");
}
int fdatasync(int descriptor) {
  return synced(descriptor, "fdatasync");
}

int rename(const char* from, const char* to) {
  const std::string whole = path_in(AT_FDCWD, from);
  return renamed(whole, path_in(AT_FDCWD, to),
                 real<int (*)(const char*, const char*)>("rename")(from, to));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const std::string whole = path_in(from_folder, from);
  return renamed(whole, path_in(to_folder, to),
                 real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(
                     from_folder, from, to_folder, to, flags));
}
int mkdir(const char* path, mode_t mode) {
  const int result = real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
  if (result == 0) record("mkdir", path_in(AT_FDCWD, path));
  return result;
}
int unlink(const char* path) {
  return removed(path_in(AT_FDCWD, path), real<int (*)(const char*)>("unlink")(path));
}
int remove(const char* path) {
  return removed(path_in(AT_FDCWD, path), real<int (*)(const char*)>("remove")(path));
}
int rmdir(const char* path) {
  return removed(path_in(AT_FDCWD, path), real<int (*)(const char*)>("rmdir")(path));
}
int unlinkat(int folder, const char* path, int flags) {
  const std::string whole = path_in(folder, path);
  return removed(whole, real<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags));
}

}  // extern "C"
