// llm.c shards (karpathy/llm.c: dev/data/data_common.py): 256 int32 of header, then u16 or u32 ids.

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "data/readers/data_format.h"
#include "data/readers/sequence_index.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

constexpr size_t kHeaderWords = kLlmcHeaderBytes / sizeof(int32_t);

bool is_llmc(const FileHead& head) {
  int32_t magic = 0;
  if (head.bytes.size() >= sizeof(magic)) {
    std::memcpy(&magic, head.bytes.data(), sizeof(magic));
  }
  return magic == kLlmcMagicU16 || magic == kLlmcMagicU32;
}

/// Reads the part of a file after the ids.
DocumentTable read_documents(const InputFile& file, uint64_t from, int64_t documents,
                             int64_t tokens) {
  std::vector<uint32_t> lengths(static_cast<size_t>(documents));
  file.read(from, lengths.data(), lengths.size() * sizeof(uint32_t));
  std::vector<uint8_t> bits(static_cast<size_t>(ceil_div(tokens, int64_t{8})));
  file.read(from + lengths.size() * sizeof(uint32_t), bits.data(), bits.size());
  DocumentTable table;
  int64_t end = 0;
  for (const uint32_t length : lengths) {
    table.ends.push_back(end += length);
  }
  if (end != tokens) {
    throw DataError(fmt::format("{}: {} documents of {} tokens, but the file holds {}",
                                file.path().string(), documents, end, tokens));
  }
  table.is_target.resize(static_cast<size_t>(tokens));
  for (size_t i = 0; i < table.is_target.size(); ++i) {
    table.is_target[i] = (bits[i / 8] >> (i % 8) & 1) != 0;
  }
  return table;
}

std::shared_ptr<const TokenStore> llmc_tokens(const std::filesystem::path& path, int64_t vocab_size,
                                              bool with_documents) {
  InputFile file(path);
  const std::string name = path.string();
  if (file.size() < kLlmcHeaderBytes) {
    throw DataError(fmt::format("{}: {} bytes are less than the {} of an llm.c header", name,
                                file.size(), kLlmcHeaderBytes));
  }
  std::array<int32_t, kHeaderWords> header = {};
  file.read(0, header.data(), kLlmcHeaderBytes);
  const int32_t magic = header[0];
  const int32_t version = header[1];
  const bool is_u16 = magic == kLlmcMagicU16;
  if (!is_u16 && magic != kLlmcMagicU32) {
    throw DataError(fmt::format("{}: magic {} is not that of an llm.c token file ({} or {})", name,
                                magic, kLlmcMagicU16, kLlmcMagicU32));
  }
  const int32_t expected_version = is_u16 ? kLlmcVersionU16 : kLlmcVersionU32;
  const bool has_documents = version == expected_version + kLlmcWithDocuments;
  if (version != expected_version && !has_documents) {
    throw DataError(
        fmt::format("{}: version {} with magic {}; this program reads versions {} and {}", name,
                    version, magic, expected_version, expected_version + kLlmcWithDocuments));
  }
  const int64_t count = header[2];
  const int bytes_per_token = is_u16 ? 2 : 4;
  const int64_t table_begin = static_cast<int64_t>(kLlmcHeaderBytes) + count * bytes_per_token;
  const int64_t of_documents = has_documents ? header[3] : 0;
  const int64_t expected = table_begin + of_documents * static_cast<int64_t>(sizeof(uint32_t)) +
                           (has_documents ? ceil_div(count, int64_t{8}) : 0);
  if (count < 0 || of_documents < 0 || static_cast<uint64_t>(expected) != file.size()) {
    throw DataError(
        fmt::format("{}: the header says {} tokens of {} bytes{}, which makes {} bytes, "
                    "but the file has {}",
                    name, count, bytes_per_token,
                    has_documents ? fmt::format(" and {} documents", of_documents) : "", expected,
                    file.size()));
  }
  DocumentTable documents;
  if (has_documents) {
    documents = read_documents(file, static_cast<uint64_t>(table_begin), of_documents, count);
  }
  TokenFile tokens = {std::move(file), is_u16 ? IdType::u16 : IdType::u32, kLlmcHeaderBytes, count};
  if (with_documents && documents.ends.empty()) documents = read_shard_documents(tokens);
  return std::make_shared<FileTokens>(std::move(tokens), vocab_size, std::move(documents));
}

}  // namespace

const DataFormat& llmc_format() {
  static constexpr DataFormat kFormat = {.name = "llmc",
                                         .suffixes = {".bin"},
                                         .content = DataContent::tokens,
                                         .matches = is_llmc,
                                         .open = llmc_tokens,
                                         .companions = document_index_of};
  return kFormat;
}

}  // namespace fp8train
