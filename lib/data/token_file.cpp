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
void read_tokens(const TokenFile& from, int64_t offset, int64_t count, int64_t vocab_size,
                 int32_t* to) {
  std::vector<Stored> stored(static_cast<size_t>(std::min(count, kTokensPerRead)));
  for (int64_t done = 0; done < count;) {
    const int64_t part = std::min(count - done, kTokensPerRead);
    const uint64_t byte = from.first_byte + static_cast<uint64_t>(offset + done) * sizeof(Stored);
    from.file.read(byte, stored.data(), static_cast<size_t>(part) * sizeof(Stored));
    for (int64_t i = 0; i < part; ++i) {
      const Stored value = stored[static_cast<size_t>(i)];
      // A negative id stays negative, and is refused.
      const auto id = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse)
      if (id < 0 || id >= vocab_size) {
        throw DataError(fmt::format(
            "{}: token {} at offset {} (byte {}) is outside the vocabulary of {}; the file was "
            "made with another tokenizer, or is not of the format that is set",
            from.file.path().string(), value, offset + done + i,
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
  decltype(&read_tokens<uint8_t>) read;
};

template <typename Stored>
constexpr TypeFacts facts_of(std::string_view name) {
  return {name, sizeof(Stored), read_tokens<Stored>};
}

constexpr std::array<TypeFacts, 8> kTypes = {facts_of<uint8_t>("u8"),   facts_of<int8_t>("i8"),
                                             facts_of<uint16_t>("u16"), facts_of<int16_t>("i16"),
                                             facts_of<uint32_t>("u32"), facts_of<int32_t>("i32"),
                                             facts_of<uint64_t>("u64"), facts_of<int64_t>("i64")};

}  // namespace

std::string_view name_of(IdType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

int size_of(IdType type) {
  return kTypes[static_cast<size_t>(type)].bytes;
}

void FileTokens::read(int64_t offset, int64_t count, int32_t* to) const {
  if (offset < 0 || count < 0 || offset > size() || count > size() - offset) {
    throw DataError(fmt::format("{}: tokens {} + {} are asked for, but it has {}",
                                file_.file.path().string(), offset, count, size()));
  }
  auto next = std::upper_bound(
      file_.runs.begin(), file_.runs.end(), offset,
      [](int64_t token, const SequenceRun& run) { return token < run.first_token; });
  while (count > 0) {
    const SequenceRun& run = *(next - 1);
    const int64_t end = next == file_.runs.end() ? size() : next->first_token;
    const int64_t part = std::min(count, end - offset);
    kTypes[static_cast<size_t>(file_.type)].read(
        file_, run.token_in_file + offset - run.first_token, part, vocab_size_, to);
    offset += part;
    count -= part;
    to += part;
    ++next;
  }
}

TokenFacts FileTokens::facts() const {
  TokenFacts facts = {.type = name_of(file_.type), .documents = file_.documents};
  if (!facts.documents && documents() != nullptr) facts.documents = std::ssize(documents()->ends);
  return facts;
}

}  // namespace fp8train
