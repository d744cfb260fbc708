#include "data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/error.h"

namespace fp8train {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr int64_t kTokensPerRead = 1 << 16;

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
      // A negative id stays negative, and is refused.
      const auto id = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse)
      if (id < 0 || id >= vocab_size) {
        throw DataError(fmt::format(
            "{}: token {} at offset {} (byte {}) is outside the vocabulary of {}; the file was "
            "made with another tokenizer, or is not what data.train[].format says",
            file.path().string(), value, offset + done + i,
            byte + static_cast<uint64_t>(i) * sizeof(Stored), vocab_size));
      }
      to[done + i] = static_cast<int32_t>(id);
    }
    done += part;
  }
}

struct TypeFacts {
  std::string_view name;
  int bytes;
};

constexpr std::array<TypeFacts, 8> kTypes = {
    {{"u8", 1}, {"i8", 1}, {"u16", 2}, {"i16", 2}, {"u32", 4}, {"i32", 4}, {"u64", 8}, {"i64", 8}}};

}  // namespace

std::string_view name_of(IdType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

int size_of(IdType type) {
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
    case IdType::u8:
      return run(uint8_t{});
    case IdType::i8:
      return run(int8_t{});
    case IdType::u16:
      return run(uint16_t{});
    case IdType::i16:
      return run(int16_t{});
    case IdType::u32:
      return run(uint32_t{});
    case IdType::i32:
      return run(int32_t{});
    case IdType::u64:
      return run(uint64_t{});
    case IdType::i64:
      return run(int64_t{});
  }
}

}  // namespace fp8train
