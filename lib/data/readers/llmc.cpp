// llm.c shards (karpathy/llm.c: dev/data/data_common.py): 256 int32 of header, then u16 or u32 ids.

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "data/readers/data_format.h"
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

std::shared_ptr<const TokenStore> llmc_tokens(const std::filesystem::path& path,
                                              int64_t vocab_size) {
  return std::make_shared<FileTokens>(open_llmc(path), vocab_size);
}

}  // namespace

TokenFile open_llmc(const std::filesystem::path& path) {
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
  if (version != expected_version) {
    throw DataError(fmt::format("{}: version {} with magic {}; this program reads version {}", name,
                                version, magic, expected_version));
  }
  const int64_t count = header[2];
  const int bytes_per_token = is_u16 ? 2 : 4;
  const int64_t expected = static_cast<int64_t>(kLlmcHeaderBytes) + count * bytes_per_token;
  if (count < 0 || static_cast<uint64_t>(expected) != file.size()) {
    throw DataError(
        fmt::format("{}: the header says {} tokens of {} bytes, which makes {} bytes, "
                    "but the file has {}",
                    name, count, bytes_per_token, expected, file.size()));
  }
  return {std::move(file), is_u16 ? TokenType::u16 : TokenType::u32, kLlmcHeaderBytes, count};
}

const DataFormat& llmc_format() {
  static constexpr DataFormat kFormat = {
      .name = "llmc", .content = DataContent::tokens, .matches = is_llmc, .open = llmc_tokens};
  return kFormat;
}

}  // namespace fp8train
