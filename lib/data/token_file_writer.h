#pragma once
// Writes a file of token ids piece by piece, so that its tokens are never in memory together. The
// file is whole or not there.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"

namespace fp8train {

/// Formats that are written; names are those of data/readers/.
enum class TokenFileFormat : uint8_t {
  llmc,     ///< an llm.c shard: u16 ids when the vocabulary has at most 65536, else u32
  npy,      ///< a NumPy array of one dimension: u16, else i32
  indexed,  ///< NAME.bin and NAME.idx (Megatron-LM): u16 below 65500 ids, else i32
};

/// Returns the names of the formats that a writer can produce.
std::vector<std::string_view> token_file_formats();
/// Returns the format of this name. Throws ConfigError, which names `option`, for another name.
TokenFileFormat token_file_format_named(std::string_view name, std::string_view option);
std::string_view name_of(TokenFileFormat format);
/// ".bin" or ".npy"
std::string_view extension_of(TokenFileFormat format);

/// Writes token ids to a file in one of the formats.
class TokenFileWriter {
 public:
  /// Opens a file that gets its name in commit(). Throws DeviceError when the disk refuses.
  TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size,
                  TokenFileFormat format = TokenFileFormat::llmc);

  /// Writes ids. Throws DataError for an id outside the vocabulary and beyond 2^31 - 1 tokens, and
  /// DeviceError when the disk refuses.
  void append(std::span<const int32_t> tokens);
  /// Writes a whole document with its targets, one flag for each token. Throws as append() does,
  /// and InternalError for other formats than llmc. A file has either documents with targets or
  /// plain tokens.
  void append_document(std::span<const int32_t> tokens, const std::vector<bool>& is_target);

  /// Ends a document: the tokens since the last call, one sequence of NAME.idx
  /// (data/readers/sequence_index.h; Megatron-LM: tools/preprocess_data.py without
  /// --split-sentences); one without tokens is left out. NAME.idx is written next to `indexed`
  /// files, and next to others where documents have ended.
  void end_document();

  int64_t count() const { return count_; }

  /// Ends the last document and writes the header, and the index or the table of documents where
  /// there is one; the file gets its name. Throws DeviceError when the disk refuses.
  void commit();

 private:
  template <typename Stored>
  void append_as(std::span<const int32_t> tokens);
  void write_llmc_header();
  void write_npy_header();
  void write_index() const;
  bool has_index() const;

  AtomicFile file_;
  std::filesystem::path path_;
  int64_t vocab_size_;
  TokenFileFormat format_;
  bool is_u16_;
  int64_t count_ = 0;
  int64_t ended_ = 0;                  ///< tokens of documents that have ended
  std::vector<int32_t> lengths_ = {};  ///< lengths of documents, for an index or a table
  std::vector<uint8_t> target_bits_;
  std::vector<char> buffer_;
};

}  // namespace fp8train
