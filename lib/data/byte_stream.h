#pragma once
// The decompressed bytes of a file, read from front to end. gzip and Zstandard are recognized by
// their magic numbers, whatever the name of the file. Memory does not grow with the file, nor with
// what it expands to: buffers of some 256 KiB, and the window of the decompressor, of at most
// 128 MiB. What is read may be thousands of times as long as the file, and time grows with it: a
// reader that holds it counts it (TextBudget).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace fp8train {

class ByteSource;

/// Reads a file, decompressed, from front to end. One thread at a time.
class ByteStream {
 public:
  /// Opens the file. Throws DataError where InputFile does.
  explicit ByteStream(const std::filesystem::path& path);
  ~ByteStream();

  /// Reads up to `bytes` bytes into `to` and returns their number, which is smaller only at the
  /// end. Throws DataError for damaged or cut-off data, and for a file that cannot be read.
  size_t read(char* to, size_t bytes);

  /// Appends up to `bytes` bytes to `text`. Returns false at the end, when there are none. Throws
  /// as read() does.
  bool append_to(std::string& text, size_t bytes);

  /// Returns the number of bytes of the file read so far, counted as they are in the file,
  /// compressed or not.
  uint64_t file_bytes_read() const;

 private:
  std::unique_ptr<ByteSource> source_;
};

/// Returns `path` without .gz or .zst, for telling what a compressed file holds.
std::filesystem::path without_compression(const std::filesystem::path& path);

}  // namespace fp8train
