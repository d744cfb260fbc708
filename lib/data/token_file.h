#pragma once
// Token ids in a file, one after the other, as most formats have them. A store of them holds an
// open descriptor and no tokens; reads are thread-safe. Shards are written by
// data/token_file_writer.h.

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

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

/// Token ids that follow one another in a file.
struct SequenceRun {
  int64_t first_token;    ///< counted over all runs
  int64_t token_in_file;  ///< the same one, counted from TokenFile::first_byte
};

/// An open file of token ids.
struct TokenFile {
  InputFile file;
  IdType type;
  uint64_t first_byte;  ///< of the ids
  int64_t count;        ///< tokens of all runs
  std::vector<SequenceRun> runs = {{0, 0}};
  /// The number of documents that the file says it has; empty: as many as DocumentTable has.
  std::optional<int64_t> documents = {};
};

/// A file as a store of ids below `vocab_size`. Reading throws DataError naming file and offset
/// when an id is not below it, the range is not within the store, or the file has become shorter.
class FileTokens final : public TokenStore {
 public:
  FileTokens(TokenFile file, int64_t vocab_size, DocumentTable documents = {})
      : TokenStore(std::move(documents)), file_(std::move(file)), vocab_size_(vocab_size) {}
  int64_t size() const override { return file_.count; }
  void read(int64_t offset, int64_t count, int32_t* to) const override;
  TokenFacts facts() const override;

 private:
  TokenFile file_;
  int64_t vocab_size_;
};

}  // namespace fp8train
