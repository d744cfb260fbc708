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
      const Stored value = stored[static_cast<size_t>(i)];
      const auto id = static_cast<int64_t>(value);
      if (id < 0 || id >= vocab_size) {
        throw DataError(fmt::format(
            "{}: token {} at offset {} (byte {}) is outside the vocabulary of {}; the file was "
            "made with another tokenizer, or is not what data.format says",
            file.path().string(), value, offset + done + i,
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

struct TypeFacts {
  std::string_view name;
  int bytes;
};

constexpr std::array<TypeFacts, 8> kTypes = {
    {{"u8", 1}, {"i8", 1}, {"u16", 2}, {"i16", 2}, {"u32", 4}, {"i32", 4}, {"u64", 8}, {"i64", 8}}};

}  // namespace

std::string_view name_of(TokenType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

int size_of(TokenType type) {
  return kTypes[static_cast<size_t>(type)].bytes;
}

void TokenFile::read(int64_t offset, int64_t count, int64_t vocab_size, int32_t* to) const {
  if (offset < 0 || count < 0 || offset > size_ || count > size_ - offset) {
    throw DataError(fmt::format("{}: tokens {} + {} are asked for, but it has {}", path().string(),
                                offset, count, size_));
  }
  const auto run = [&]<typename Stored>(Stored /*type*/) {
    read_tokens<Stored>(file_, first_byte_, offset, count, vocab_size, to);
  };
  switch (type_) {
    case TokenType::u8:
      return run(uint8_t{});
    case TokenType::i8:
      return run(int8_t{});
    case TokenType::u16:
      return run(uint16_t{});
    case TokenType::i16:
      return run(int16_t{});
    case TokenType::u32:
      return run(uint32_t{});
    case TokenType::i32:
      return run(int32_t{});
    case TokenType::u64:
      return run(uint64_t{});
    case TokenType::i64:
      return run(int64_t{});
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
