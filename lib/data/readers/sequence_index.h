#pragma once
// The index of an indexed data set (Megatron-LM: megatron/core/datasets/indexed_dataset.py): it
// says where the sequences of a file of token ids are and which of them make a document, and next
// to the shards of `data prepare` where their documents end. All integers are little-endian:
//   9 bytes "MMIDIDX\0\0", u64 version 1, u8 type of the ids, u64 sequences, u64 documents,
//   i32 length of each sequence, i64 byte of the file where it begins,
//   i64 boundaries of documents, counted in sequences: 0, ..., sequences.

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "data/token_file.h"
#include "data/token_store.h"

namespace fp8train {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kIndexVersion = 1;
/// The class DType of the source; its 6 and 7 are float64 and float32.
constexpr std::pair<uint8_t, IdType> kIndexCodes[] = {{1, IdType::u8},  {2, IdType::i8},
                                                      {3, IdType::i16}, {4, IdType::i32},
                                                      {5, IdType::i64}, {8, IdType::u16}};

/// The index of one file of token ids.
struct SequenceIndex {
  IdType type = IdType::u16;
  std::vector<SequenceRun> runs;  ///< of sequences, in the order of the index
  int64_t tokens = 0;
  int64_t documents = 0;
  DocumentTable table;  ///< documents that have tokens, if they were requested
};

/// Returns NAME.idx for NAME.bin or NAME.npy.
std::filesystem::path index_path(const std::filesystem::path& data);

/// Reads the index of a file of `data_bytes` bytes, and its documents into SequenceIndex::table if
/// `with_documents`. Throws DataError where it contradicts itself or the size of the file.
SequenceIndex read_sequence_index(const std::filesystem::path& data, uint64_t data_bytes,
                                  bool with_documents);

/// Returns the index of a shard if there is one and `with_documents`, else nothing: the
/// companions() of formats that have no documents of their own.
std::vector<std::filesystem::path> document_index_of(const std::filesystem::path& data,
                                                     bool with_documents = true);

/// Returns the documents of a shard, or an empty table if document_index_of() is empty. Throws
/// DataError if the index is damaged or of another file.
DocumentTable read_shard_documents(const TokenFile& shard);

}  // namespace fp8train
