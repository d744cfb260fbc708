#pragma once
// Hashes of the whole content of a run's data files, so that a resumed run knows that not one byte
// has changed. A file is read once: its hash is stored in a JSON file, for as long as the file's
// size, times and inode stay the same. Data up to a bound is hashed at once; of more, a thread
// reads the rest while training continues. Owns the thread; all functions may be called from any
// thread.

#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "data/corpus.h"

namespace fp8train {

/// The hash of one file of the data.
struct FileHash {
  std::string xxh3_128;
  FileIdentity identity;
  int64_t read_at_ns = 0;  ///< when reading began
};

/// Hashes files on a thread and stores the hashes in a cache.
class FileHashes {
 public:
  /// Bytes that are hashed before a run starts, which takes seconds on most disks.
  static constexpr uint64_t kAtOnce = uint64_t{2} << 30;

  /// Hashes `files`, except those whose hash is in the file `cache`. At most `at_once` bytes are
  /// read before this returns. A cache that is damaged or cannot be written costs reading again.
  /// Throws DataError where a file cannot be read or has changed since it was opened.
  FileHashes(std::vector<DataFile> files, std::filesystem::path cache, uint64_t at_once = kAtOnce);

  const std::vector<DataFile>& files() const { return files_; }

  /// Returns XXH3-128 of each file's bytes as 32 hex digits, or "" if it is not known yet. Rethrows
  /// errors of reading.
  std::vector<std::string> known() const;
  /// Changes with every hash that becomes known or fails.
  int64_t version() const;
  /// Bytes whose hash is not known yet.
  uint64_t bytes_left() const;

 private:
  void read_cache();
  void write_cache() const;
  void read_rest(const std::stop_token& stop);

  std::vector<DataFile> files_;
  std::filesystem::path cache_;
  mutable std::mutex mutex_;
  std::vector<FileHash> hashes_;
  std::exception_ptr failure_;
  int64_t version_ = 0;
  std::jthread thread_;  // last: everything it uses is constructed before it starts
};

}  // namespace fp8train
