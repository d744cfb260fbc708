#pragma once
// A regular file opened for positioned reads. Reads go through pread, never through a mapping, so
// that a file that shrinks under a run is an error message and not a SIGBUS. Thread-safe after
// construction; owns its descriptor.

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace fp8train {

class InputFile {
 public:
  enum class Links { follow, refuse };

  /// Throws DataError naming the path when it is missing, a directory, a FIFO or a device, or
  /// (Links::refuse) a symbolic link.
  explicit InputFile(std::filesystem::path path, Links links = Links::follow);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }

  /// Bytes at the time of opening.
  uint64_t size() const { return size_; }

  /// Reads exactly `bytes` at byte `offset`. Throws DataError with the numbers when the file ends
  /// before.
  void read(uint64_t offset, void* to, size_t bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace fp8train
