#include "base/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace fp8train {
namespace {

void take_back(int descriptor, size_t bytes) {
  const off_t end = bytes > 0 ? ::lseek(descriptor, 0, SEEK_END) : -1;
  if (end >= static_cast<off_t>(bytes)) {
    // Where this fails too, a reader finds a cut record at the end.
    [[maybe_unused]] const int done = ::ftruncate(descriptor, end - static_cast<off_t>(bytes));
  }
}

}  // namespace

void require_regular_file(const std::filesystem::path& path) {
  std::error_code unseen;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, unseen);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw DeviceError(
        fmt::format("{} is {}, not a regular file: remove it, or choose another folder",
                    path.string(), std::filesystem::is_symlink(status) ? "a link" : "special"));
  }
}

int open_to_append(const std::filesystem::path& path) {
  require_regular_file(path);
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int descriptor = ::open(path.c_str(), flags, 0644);
  if (descriptor < 0) {
    throw DeviceError(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  }
  return descriptor;
}

void sync_content(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  const bool done = descriptor >= 0 ? ::fdatasync(descriptor) == 0 : errno == ENOENT;
  const int failure = errno;
  close_file(descriptor);
  if (!done) {
    throw DeviceError(fmt::format("cannot flush {}: {}", path.string(), std::strerror(failure)));
  }
}

void append_whole(int descriptor, const std::filesystem::path& path, std::string_view record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t written = ::write(descriptor, record.data() + done, record.size() - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      const int failure = errno;
      take_back(descriptor, done);
      throw DeviceError(fmt::format("cannot write {}: {}", path.string(), std::strerror(failure)));
    }
    done += static_cast<size_t>(written);
  }
}

void close_file(int descriptor) {
  if (descriptor >= 0) {
    ::close(descriptor);
  }
}

}  // namespace fp8train
