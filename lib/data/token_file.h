#pragma once
// Files of token ids. Reading: llm.c shards (karpathy/llm.c: dev/data/data_common.py; 256 int32 of
// header, then u16 or u32 ids) and nanoGPT's headerless u16. Writing: llm.c shards. A TokenFile
// holds an open descriptor and no tokens; reads are thread-safe.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "data/input_file.h"

namespace fp8train {

enum class TokenFileKind : uint8_t { llmc, raw_u16 };

constexpr int32_t kLlmcMagicU16 = 20240520;
constexpr int32_t kLlmcVersionU16 = 1;
constexpr int32_t kLlmcMagicU32 = 20240801;
constexpr int32_t kLlmcVersionU32 = 7;
constexpr uint64_t kLlmcHeaderBytes = 1024;
constexpr int64_t kU16Vocab = 65536;  // ids below it fit into u16

class TokenFile {
 public:
  /// Checks the header and the size. Throws DataError naming the file and the numbers; symbolic
  /// links, FIFOs and directories are refused.
  TokenFile(const std::filesystem::path& path, TokenFileKind kind);

  const std::filesystem::path& path() const { return file_.path(); }

  /// Number of tokens.
  int64_t size() const { return size_; }
  int bytes_per_token() const { return bytes_per_token_; }

  /// Tokens [offset, offset + count) into `to`. Throws DataError naming file and offset when an id
  /// is not below `vocab_size` or the file has become shorter.
  void read(int64_t offset, int64_t count, int64_t vocab_size, int32_t* to) const;

 private:
  void read_llmc_header();

  InputFile file_;
  int64_t size_ = 0;
  uint64_t first_byte_ = 0;
  int bytes_per_token_ = 2;
};

/// Writes one llm.c shard, whole or not at all: u16 ids (magic 20240520) when `vocab_size` <=
/// 65536, else u32 (magic 20240801). Throws DataError for an id outside the vocabulary or more than
/// 2^31 - 1 tokens, DeviceError when the disk refuses.
void write_token_file(const std::filesystem::path& path, std::span<const int32_t> tokens,
                      int64_t vocab_size);

}  // namespace fp8train
