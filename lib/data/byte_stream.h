#pragma once
// The decompressed bytes of a file, read from front to end. gzip and Zstandard are recognized by
// their magic numbers, whatever the name of the file. Uses some 256 KiB of memory.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace fp8train {

class ByteSource;

class ByteStream {
 public:
  /// Throws DataError where InputFile does.
  explicit ByteStream(const std::filesystem::path& path);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// Up to `bytes` bytes, fewer only at the end. Throws DataError for damaged or cut-off data.
  size_t read(char* to, size_t bytes);

  /// Appends up to `bytes` bytes to `text`; false at the end, when there are none.
  bool append_to(std::string& text, size_t bytes);

  /// Bytes of the file read so far, compressed ones where it is compressed.
  uint64_t file_bytes_read() const;

 private:
  std::unique_ptr<ByteSource> source_;
};

/// `path` without .gz or .zst, for telling what a compressed file holds.
std::filesystem::path without_compression(const std::filesystem::path& path);

}  // namespace fp8train
