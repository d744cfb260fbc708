#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

[[noreturn]] void fail(const char* action, const std::filesystem::path& path) {
  const int code = errno;
  const char* advice = code == ENOSPC || code == EDQUOT ? "; free some space and run again" : "";
  throw DeviceError(
      fmt::format("cannot {} {}: {}{}", action, path.string(), std::strerror(code), advice));
}

/// Calls write_some(data, bytes left, bytes done) until all is written.
template <typename WriteSome>
void write_all(const void* data, size_t bytes, const std::filesystem::path& path,
               WriteSome write_some) {
  const char* begin = static_cast<const char*>(data);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t written = write_some(begin + done, bytes - done, uint64_t{done});
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      fail("write", path);
    }
    done += static_cast<size_t>(written);
  }
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// A pipe that nobody reads is an error, and is not waited for.
int open_stream(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
  if (descriptor >= 0) {
    ::fcntl(descriptor, F_SETFL, O_APPEND);  // and no longer O_NONBLOCK
  }
  return descriptor;
}

/// Opens a new file. What an interrupted run left there is removed first, and so is a link that
/// somebody else may have put there.
int open_new(const std::filesystem::path& path, Access access) {
  const auto create = [&] {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                  access == Access::owner ? 0600 : 0644);
  };
  const int descriptor = create();
  return descriptor < 0 && errno == EEXIST && ::unlink(path.c_str()) == 0 ? create() : descriptor;
}

/// The topmost folder of the path that is not there, or that nobody here may see.
std::filesystem::path first_missing(const std::filesystem::path& folder) {
  std::error_code unseen;
  std::filesystem::path missing = folder.lexically_normal();
  while (missing.has_relative_path() && !missing.parent_path().empty() &&
         !std::filesystem::exists(missing.parent_path(), unseen)) {
    missing = missing.parent_path();
  }
  return missing;
}

void take_back(int descriptor, size_t bytes) {
  const off_t end = bytes > 0 ? ::lseek(descriptor, 0, SEEK_END) : -1;
  if (end >= static_cast<off_t>(bytes)) {
    // Where this fails too, a reader finds a cut record at the end.
    [[maybe_unused]] const int done = ::ftruncate(descriptor, end - static_cast<off_t>(bytes));
  }
}

}  // namespace

bool is_stream(const std::filesystem::path& path) {
  const bool in_dev = path.string().starts_with("/dev/");
  struct stat found = {};
  if ((in_dev ? ::stat(path.c_str(), &found) : ::lstat(path.c_str(), &found)) != 0) {
    return false;
  }
  return S_ISCHR(found.st_mode) ||
         (in_dev && (S_ISFIFO(found.st_mode) ||
                     (S_ISREG(found.st_mode) && std::filesystem::is_symlink(path))));
}

std::string why_not_replaced(const std::filesystem::path& path) {
  std::error_code unseen;
  const auto type = std::filesystem::symlink_status(path, unseen).type();
  using Type = std::filesystem::file_type;
  if (type == Type::none || type == Type::not_found || type == Type::regular || is_stream(path)) {
    return "";
  }
  const char* const what = type == Type::directory ? "a folder; name a file"
                           : type == Type::symlink
                               ? "a link, which a file would replace; remove it, or name the "
                                 "file that it leads to"
                               : "a pipe, a device or a socket, which a file would replace; name a "
                                 "file";
  return fmt::format("{} is {}", path.string(), what);
}

AtomicFile::AtomicFile(std::filesystem::path path, Access access)
    : path_(std::move(path)), is_stream_(is_stream(path_)) {
  if (const std::string problem = why_not_replaced(path_); !problem.empty()) {
    throw DeviceError(problem);
  }
  partial_path_ = is_stream_ ? path_.string() : path_.string() + ".partial";
  descriptor_ = Descriptor(is_stream_ ? open_stream(path_) : open_new(partial_path_, access));
  if (!descriptor_.is_open()) {
    fail(is_stream_ ? "open" : "create", partial_path_);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_.is_open()) {
    descriptor_.close();
    if (!is_stream_) {
      ::unlink(partial_path_.c_str());
    }
  }
}

void AtomicFile::write(const void* data, size_t bytes) {
  write_all(data, bytes, partial_path_, [this](const char* next, size_t left, uint64_t /*done*/) {
    return ::write(descriptor_.get(), next, left);
  });
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  if (is_stream_) {
    errno = ESPIPE;
    fail("write at a position of", path_);
  }
  write_all(data, bytes, partial_path_, [&](const char* next, size_t left, uint64_t done) {
    return ::pwrite(descriptor_.get(), next, left, static_cast<off_t>(offset + done));
  });
}

void AtomicFile::commit() {
  if (is_stream_) {
    if (!descriptor_.close()) {
      fail("write", path_);
    }
    return;
  }
  if (::fsync(descriptor_.get()) != 0) {
    fail("flush", partial_path_);
  }
  if (!descriptor_.close() || ::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(partial_path_.c_str());
    errno = code;
    fail("publish", path_);
  }
  sync_directory(parent_of(path_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text,
                           Access access) {
  AtomicFile file(path, access);
  file.write(text);
  file.commit();
}

void create_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  if (std::filesystem::is_directory(folder, failure)) {
    return;
  }
  const std::filesystem::path top = first_missing(std::filesystem::absolute(folder));
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    throw DeviceError(
        fmt::format("cannot create {}: {}", first_missing(folder).string(), failure.message()));
  }
  // The name of each new folder is in the one above it.
  std::filesystem::path made = std::filesystem::absolute(folder).lexically_normal();
  for (; made.has_relative_path() && made.native().size() >= top.native().size();
       made = made.parent_path()) {
    const Descriptor parent(::open(made.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent.is_open()) {
      ::fsync(parent.get());  // some file systems have no such call; their names are not lost alone
    }
  }
}

void sync_directory(const std::filesystem::path& directory) {
  const Descriptor opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) {
    fail("open directory", directory);
  }
  if (::fsync(opened.get()) != 0) {
    fail("flush directory", directory);
  }
}

void require_regular_file(const std::filesystem::path& path) {
  std::error_code unseen;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, unseen);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw DeviceError(
        fmt::format("{} is {}, not a regular file: remove it, or choose another folder",
                    path.string(), std::filesystem::is_symlink(status) ? "a link" : "special"));
  }
}

AppendedFile::AppendedFile(std::filesystem::path path) : path_(std::move(path)) {
  require_regular_file(path_);
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  descriptor_ = Descriptor(::open(path_.c_str(), flags, 0644));
  if (!descriptor_.is_open()) {
    throw DeviceError(fmt::format("cannot open {}: {}", path_.string(), std::strerror(errno)));
  }
}

void AppendedFile::append(std::string_view record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t written = ::write(descriptor_.get(), record.data() + done, record.size() - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      const int failure = errno;
      take_back(descriptor_.get(), done);
      throw DeviceError(fmt::format("cannot write {}: {}", path_.string(), std::strerror(failure)));
    }
    done += static_cast<size_t>(written);
  }
}

void sync_content(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.is_open() ? ::fdatasync(file.get()) != 0 : errno != ENOENT) {
    throw DeviceError(fmt::format("cannot flush {}: {}", path.string(), std::strerror(errno)));
  }
}

}  // namespace fp8train
