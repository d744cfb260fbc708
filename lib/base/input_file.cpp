#include "base/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/content_hash.h"
#include "base/error.h"

namespace fp8train {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

FileIdentity identity_of(const struct stat& info) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  return {.bytes = static_cast<uint64_t>(info.st_size),
          .mtime_ns = info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec,
          .ctime_ns = info.st_ctim.tv_sec * kNanoseconds + info.st_ctim.tv_nsec,
          .inode = info.st_ino};
}

}  // namespace

InputFile::InputFile(std::filesystem::path path, Links links) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::refuse ? O_NOFOLLOW : 0);
  descriptor_ = Descriptor(::open(path_.c_str(), flags));
  if (!descriptor_.is_open()) {
    const int code = errno;
    if (code == ELOOP && links == Links::refuse) {
      throw DataError(fmt::format("{}: is a symbolic link; name the file it points to instead",
                                  path_.string()));
    }
    std::error_code unseen;
    const std::filesystem::path target = std::filesystem::read_symlink(path_, unseen);
    if (code == ENOENT && !target.empty()) {
      throw DataError(
          fmt::format("cannot open {}: it is a link to {}, which does not exist; fetch that file "
                      "again, or remove the link",
                      path_.string(), target.string()));
    }
    throw DataError(fmt::format("cannot open {}: {}", path_.string(), std::strerror(code)));
  }
  struct stat info = {};
  const bool known = ::fstat(descriptor_.get(), &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    throw DataError(fmt::format("cannot read {}: it is {}, not a regular file", path_.string(),
                                known ? kind_of(info.st_mode) : "unreadable"));
  }
  opened_ = identity_of(info);
}

FileIdentity InputFile::identity() const {
  struct stat info = {};
  if (::fstat(descriptor_.get(), &info) != 0) {
    throw DataError(
        fmt::format("{}: cannot be looked at: {}", path_.string(), std::strerror(errno)));
  }
  return identity_of(info);
}

void InputFile::read(uint64_t offset, void* to, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(descriptor_.get(), static_cast<char*>(to) + done, bytes - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw DataError(fmt::format("{}: reading {} bytes at byte {} failed: {}", path_.string(),
                                  bytes, offset, std::strerror(errno)));
    }
    if (got == 0) {
      throw DataError(
          fmt::format("{}: the file ends at byte {}, but {} bytes at byte {} are needed; it had "
                      "{} bytes when it was opened",
                      path_.string(), offset + done, bytes, offset, opened_.bytes));
    }
    done += static_cast<size_t>(got);
  }
}

bool has_file(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code unseen;
  const fs::file_type type = fs::status(path, unseen).type();
  return type == fs::file_type::not_found ? fs::is_symlink(fs::symlink_status(path, unseen))
                                          : type != fs::file_type::directory;
}

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const InputFile file(path);
  if (file.size() > max_bytes) {
    throw DataError(fmt::format("{} has {} bytes; at most {} are accepted here", path.string(),
                                file.size(), max_bytes));
  }
  refuse_lfs_pointer(file);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

std::optional<std::string> hash_content(const InputFile& file, const std::function<bool()>& stop) {
  constexpr size_t kHashedAtATime = 1U << 20;
  ContentHasher hasher;
  std::vector<char> part;
  for (uint64_t offset = 0; offset < file.size(); offset += part.size()) {
    if (stop()) return std::nullopt;
    part.resize(std::min<uint64_t>(file.size() - offset, kHashedAtATime));
    file.read(offset, part.data(), part.size());
    hasher.update(part.data(), part.size());
  }
  return hasher.digest();
}

void refuse_lfs_pointer(const InputFile& file) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  constexpr uint64_t kMaxPointer = 1024;
  if (file.size() < kBegin.size() || file.size() >= kMaxPointer) {
    return;
  }
  std::string begin(kBegin.size(), '\0');
  file.read(0, begin.data(), begin.size());
  if (begin == kBegin) {
    throw DataError(file.path().string() +
                    ": a pointer of git-lfs and not the file itself; fetch it with `git lfs pull`");
  }
}

}  // namespace fp8train
