#pragma once
// Token ids in a file, one after the other, as most formats have them. A TokenFile holds an open
// descriptor and no tokens; reads are thread-safe. Shards are written by
// data/token_file_writer.h.

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/input_file.h"
#include "data/token_store.h"

namespace fp8train {

/// How an id is stored, little-endian.
enum class IdType : uint8_t { u8, i8, u16, i16, u32, i32, u64, i64 };

std::string_view name_of(IdType type);  ///< "u16"
int size_of(IdType type);               ///< in bytes

constexpr int32_t kLlmcMagicU16 = 20240520;
constexpr int32_t kLlmcVersionU16 = 1;
constexpr int32_t kLlmcMagicU32 = 20240801;
constexpr int32_t kLlmcVersionU32 = 7;
/// A file that ends with a table of documents has a version that is higher by this. header[3] is
/// the number of documents; after the ids come a u32 length for each document and a bit for each
/// id, lowest first, which says whether it is a target.
constexpr int32_t kLlmcWithDocuments = 1;
constexpr uint64_t kLlmcHeaderBytes = 1024;
constexpr int64_t kU16Vocab = 65536;  // ids below it fit into u16

/// An open file of token ids.
class TokenFile {
 public:
  /// Describes a file whose `count` ids begin at byte `first_byte`. Does not check its size.
  TokenFile(InputFile file, IdType type, uint64_t first_byte, int64_t count)
      : file_(std::move(file)), type_(type), first_byte_(first_byte), size_(count) {}

  const std::filesystem::path& path() const { return file_.path(); }

  /// Returns the number of tokens.
  int64_t size() const { return size_; }
  IdType type() const { return type_; }
  int bytes_per_token() const { return size_of(type_); }
  uint64_t first_byte() const { return first_byte_; }

  /// Reads tokens [offset, offset + count) into `to`. Throws DataError naming file and offset when
  /// an id is not below `vocab_size`, the range is not within the file, or the file has become
  /// shorter.
  void read(int64_t offset, int64_t count, int64_t vocab_size, int32_t* to) const;

 private:
  InputFile file_;
  IdType type_;
  uint64_t first_byte_;
  int64_t size_;
};

/// A TokenFile as a store of ids below `vocab_size`.
class FileTokens final : public TokenStore {
 public:
  FileTokens(TokenFile file, int64_t vocab_size, DocumentTable documents = {})
      : file_(std::move(file)), vocab_size_(vocab_size), documents_(std::move(documents)) {}
  int64_t size() const override { return file_.size(); }
  void read(int64_t offset, int64_t count, int32_t* to) const override {
    file_.read(offset, count, vocab_size_, to);
  }
  TokenFacts facts() const override {
    TokenFacts facts = {.type = name_of(file_.type())};
    if (documents() != nullptr) facts.documents = static_cast<int64_t>(documents_.ends.size());
    return facts;
  }
  const DocumentTable* documents() const override {
    return documents_.ends.empty() ? nullptr : &documents_;
  }

 private:
  TokenFile file_;
  int64_t vocab_size_;
  DocumentTable documents_;
};

/// Opens a file and checks its header and size. Throws DataError naming the file and the numbers;
/// FIFOs, devices and directories are refused. The two functions below do the same.
TokenFile open_llmc(const std::filesystem::path& path);     ///< data/readers/llmc.cpp
TokenFile open_raw_u16(const std::filesystem::path& path);  ///< data/readers/raw_u16.cpp
TokenFile open_npy(const std::filesystem::path& path);      ///< data/readers/npy.cpp

}  // namespace fp8train
