#include "data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"

namespace fp8train {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr int64_t kTokensPerRead = 1 << 16;
constexpr size_t kHeaderWords = kLlmcHeaderBytes / sizeof(int32_t);

template <typename Stored>
void read_tokens(const InputFile& file, uint64_t first_byte, int64_t offset, int64_t count,
                 int64_t vocab_size, int32_t* to) {
  std::vector<Stored> stored(static_cast<size_t>(std::min(count, kTokensPerRead)));
  for (int64_t done = 0; done < count;) {
    const int64_t part = std::min(count - done, kTokensPerRead);
    const uint64_t byte = first_byte + static_cast<uint64_t>(offset + done) * sizeof(Stored);
    file.read(byte, stored.data(), static_cast<size_t>(part) * sizeof(Stored));
    for (int64_t i = 0; i < part; ++i) {
      const auto id = static_cast<int64_t>(stored[static_cast<size_t>(i)]);
      if (id >= vocab_size) {
        throw DataError(fmt::format(
            "{}: token {} at offset {} (byte {}) is outside the vocabulary of {}; the file was "
            "made with another tokenizer, or is not what data.format says",
            file.path().string(), id, offset + done + i,
            byte + static_cast<uint64_t>(i) * sizeof(Stored), vocab_size));
      }
      to[done + i] = static_cast<int32_t>(id);
    }
    done += part;
  }
}

template <typename Stored>
void write_tokens(AtomicFile& file, std::span<const int32_t> tokens, int64_t vocab_size) {
  std::vector<Stored> stored;
  for (size_t done = 0; done < tokens.size(); done += stored.size()) {
    stored.resize(std::min(tokens.size() - done, static_cast<size_t>(kTokensPerRead)));
    for (size_t i = 0; i < stored.size(); ++i) {
      const int32_t id = tokens[done + i];
      if (id < 0 || id >= vocab_size) {
        throw DataError(fmt::format("token {} at offset {} is outside the vocabulary of {}", id,
                                    done + i, vocab_size));
      }
      stored[i] = static_cast<Stored>(id);
    }
    file.write(stored.data(), stored.size() * sizeof(Stored));
  }
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, TokenFileKind kind)
    : file_(path, InputFile::Links::refuse) {
  if (kind == TokenFileKind::llmc) {
    read_llmc_header();
    return;
  }
  if (file_.size() % 2 != 0) {
    throw DataError(
        fmt::format("{}: {} bytes are not a whole number of u16 tokens; the file is cut "
                    "off or has another format",
                    path.string(), file_.size()));
  }
  size_ = static_cast<int64_t>(file_.size() / 2);
}

void TokenFile::read_llmc_header() {
  const std::string name = path().string();
  if (file_.size() < kLlmcHeaderBytes) {
    throw DataError(fmt::format("{}: {} bytes are less than the {} of an llm.c header", name,
                                file_.size(), kLlmcHeaderBytes));
  }
  std::array<int32_t, kHeaderWords> header = {};
  file_.read(0, header.data(), kLlmcHeaderBytes);
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
  bytes_per_token_ = is_u16 ? 2 : 4;
  const int64_t expected = static_cast<int64_t>(kLlmcHeaderBytes) + count * bytes_per_token_;
  if (count < 0 || static_cast<uint64_t>(expected) != file_.size()) {
    throw DataError(
        fmt::format("{}: the header says {} tokens of {} bytes, which makes {} bytes, "
                    "but the file has {}",
                    name, count, bytes_per_token_, expected, file_.size()));
  }
  size_ = count;
  first_byte_ = kLlmcHeaderBytes;
}

void TokenFile::read(int64_t offset, int64_t count, int64_t vocab_size, int32_t* to) const {
  if (offset < 0 || count < 0 || offset > size_ || count > size_ - offset) {
    throw DataError(fmt::format("{}: tokens {} + {} are asked for, but it has {}", path().string(),
                                offset, count, size_));
  }
  if (bytes_per_token_ == 2) {
    read_tokens<uint16_t>(file_, first_byte_, offset, count, vocab_size, to);
  } else {
    read_tokens<uint32_t>(file_, first_byte_, offset, count, vocab_size, to);
  }
}

void write_token_file(const std::filesystem::path& path, std::span<const int32_t> tokens,
                      int64_t vocab_size) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw DataError(fmt::format("{}: {} tokens are more than an llm.c shard can count (2^31 - 1)",
                                path.string(), tokens.size()));
  }
  const bool is_u16 = vocab_size <= kU16Vocab;
  std::array<int32_t, kHeaderWords> header = {};
  header[0] = is_u16 ? kLlmcMagicU16 : kLlmcMagicU32;
  header[1] = is_u16 ? kLlmcVersionU16 : kLlmcVersionU32;
  header[2] = static_cast<int32_t>(tokens.size());
  AtomicFile file(path);
  file.write(header.data(), kLlmcHeaderBytes);
  if (is_u16) {
    write_tokens<uint16_t>(file, tokens, vocab_size);
  } else {
    write_tokens<uint32_t>(file, tokens, vocab_size);
  }
  file.commit();
}

}  // namespace fp8train
