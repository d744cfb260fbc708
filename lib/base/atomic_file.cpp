#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

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

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), partial_path_(path_.string() + ".partial") {
  descriptor_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    fail("create", partial_path_);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(partial_path_.c_str());
  }
}

void AtomicFile::write(const void* data, size_t bytes) {
  write_all(data, bytes, partial_path_, [this](const char* next, size_t left, uint64_t /*done*/) {
    return ::write(descriptor_, next, left);
  });
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  write_all(data, bytes, partial_path_, [&](const char* next, size_t left, uint64_t done) {
    return ::pwrite(descriptor_, next, left, static_cast<off_t>(offset + done));
  });
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) {
    fail("flush", partial_path_);
  }
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0 || ::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(partial_path_.c_str());
    errno = code;
    fail("publish", path_);
  }
  sync_directory(parent_of(path_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void create_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    throw DeviceError(
        fmt::format("cannot create {}: {}", first_missing(folder).string(), failure.message()));
  }
}

void sync_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    fail("open directory", directory);
  }
  const int result = ::fsync(descriptor);
  ::close(descriptor);
  if (result != 0) {
    fail("flush directory", directory);
  }
}

}  // namespace fp8train
