#pragma once
// Writes an llm.c shard piece by piece, so that its tokens are never in memory together. The file
// is whole or not there.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/atomic_file.h"

namespace fp8train {

class TokenFileWriter {
 public:
  /// u16 ids when `vocab_size` <= 65536, else u32. Throws DeviceError when the disk refuses.
  TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size);

  /// Throws DataError for an id outside the vocabulary and beyond 2^31 - 1 tokens.
  void append(std::span<const int32_t> tokens);
  /// A whole document with its targets; a file has either such or plain tokens.
  void append_document(std::span<const int32_t> tokens, const std::vector<bool>& is_target);

  int64_t count() const { return count_; }

  /// Writes the header, and the table of documents where there are any; the file gets its name.
  void commit();

 private:
  template <typename Stored>
  void append_as(std::span<const int32_t> tokens);

  AtomicFile file_;
  std::filesystem::path path_;
  int64_t vocab_size_;
  int64_t count_ = 0;
  std::vector<uint32_t> document_lengths_;
  std::vector<uint8_t> target_bits_;
  std::vector<char> buffer_;
};

}  // namespace fp8train
