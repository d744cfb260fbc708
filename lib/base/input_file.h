#pragma once
// A regular file opened for positioned reads. Reads go through pread, never through a mapping, so
// that a file that shrinks under a run is an error message and not a SIGBUS. Thread-safe after
// construction; owns its descriptor.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/descriptor.h"

namespace fp8train {

/// The file system's facts of a file, without reading it. Writing to a file changes one of them:
/// the modification time can be set back by a program, the change time cannot.
struct FileIdentity {
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;  ///< last modification, since 1970
  int64_t ctime_ns = 0;  ///< last change of content, name or attributes
  uint64_t inode = 0;

  bool operator==(const FileIdentity&) const = default;
};

/// A file that is open as long as this object lives. Movable.
class InputFile {
 public:
  enum class Links { follow, refuse };

  /// Throws DataError naming the path when it cannot be opened, is not a regular file (a directory,
  /// a FIFO, a socket or a device) or (Links::refuse) is a symbolic link.
  explicit InputFile(std::filesystem::path path, Links links = Links::follow);

  const std::filesystem::path& path() const { return path_; }

  /// Bytes at the time of opening.
  uint64_t size() const { return opened_.bytes; }
  const FileIdentity& opened() const { return opened_; }

  /// Returns what the file system reports about the file now. Throws DataError.
  FileIdentity identity() const;

  /// Reads exactly `bytes` at byte `offset` into `to`. Throws DataError with the numbers when
  /// reading fails or the file ends before.
  void read(uint64_t offset, void* to, size_t bytes) const;

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  FileIdentity opened_;
};

/// Whether there is something other than a folder, be it a link whose file is gone, or nobody
/// knows: a file that may be absent is read where this is true, and then what is wrong is an error.
bool has_file(const std::filesystem::path& path);

/// The whole file as a string. Throws DataError naming the file when it cannot be read or is larger
/// than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes);

/// Returns the XXH3-128 of all bytes of a file as 32 hex digits, or nothing if `stop`, which is
/// asked before every MiB, returns true. Throws DataError.
std::optional<std::string> hash_content(
    const InputFile& file, const std::function<bool()>& stop = [] { return false; });

/// Throws DataError, with what to do, where the file is a pointer, which git-lfs leaves in a clone
/// for a large file (git-lfs, docs/spec.md: "The Pointer"). read_text_file calls it.
void refuse_lfs_pointer(const InputFile& file);

}  // namespace fp8train
