#pragma once
// Files that are either complete or absent: written under another name, flushed to disk, then
// renamed; and files that grow by whole records.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace fp8train {

/// Whether the file is a stream, which bytes are written to as they come: a terminal or another
/// device of characters, such as /dev/null, and what a link in /dev leads to (/dev/stdout,
/// /dev/fd/3). A pipe elsewhere is none: somebody else may have made it, and would decide how long
/// a write takes.
bool is_stream(const std::filesystem::path& path);

/// Returns why no file can be written in place of what is there, or an empty text: `path` is
/// absent, a regular file or a stream. A link is never replaced nor followed.
std::string why_not_replaced(const std::filesystem::path& path);

enum class Access : uint8_t { all_read, owner };

/// A file under construction next to `path`. commit() makes it durable and visible; destruction
/// without commit() removes it. Every failure (disk full, permission, failed fsync) throws
/// DeviceError naming the file, as does what why_not_replaced() refuses; the old `path`, if any,
/// stays intact, unless only the flush of the folder fails after the renaming. A stream gets the
/// bytes at once.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path, Access access = Access::all_read);
  ~AtomicFile();

  /// Appends `bytes` bytes of `data`.
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes at byte `offset` and does not move the position at which write() continues. Bytes that
  /// are never written are zeros. A stream has no positions: DeviceError.
  void write_at(uint64_t offset, const void* data, size_t bytes);
  /// Flushes the file, renames it to `path` and flushes the folder. Called once, last.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_path_;  ///< of a stream: path_
  bool is_stream_;
  Descriptor descriptor_;
};

/// Writes `text` to `path` as one AtomicFile. Throws DeviceError.
void write_file_atomically(const std::filesystem::path& path, std::string_view text,
                           Access access = Access::all_read);

/// Creates the folder and its missing parents, and flushes their names to disk where the file
/// system can. Throws DeviceError naming the first folder that cannot be created.
void create_folder(const std::filesystem::path& folder);

/// Flushes a directory's entries (new names, renames) to disk. Throws DeviceError naming it.
void sync_directory(const std::filesystem::path& directory);

/// Throws DeviceError if `path` is a link or anything else that is no regular file: whoever may
/// write into the folder could have put it there.
void require_regular_file(const std::filesystem::path& path);

/// A file that grows by whole records while others read it. Movable.
class AppendedFile {
 public:
  /// Opens `path`, which is made if it is missing. Throws DeviceError, also as
  /// require_regular_file().
  explicit AppendedFile(std::filesystem::path path);

  /// Appends `record`, in one write if the system accepts that. Throws DeviceError when the record
  /// cannot be written whole; the bytes already written are taken back, so that the next record
  /// begins on its own.
  void append(std::string_view record);

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
};

/// Flushes the content of a file to disk; does nothing if there is none. Throws DeviceError.
void sync_content(const std::filesystem::path& path);

}  // namespace fp8train
