#include "data/token_file_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

constexpr size_t kTokensAtATime = 64U << 10;
constexpr size_t kLlmcHeaderWords = kLlmcHeaderBytes / sizeof(int32_t);

}  // namespace

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size)
    : file_(path), path_(path), vocab_size_(vocab_size) {
  const std::array<int32_t, kLlmcHeaderWords> empty = {};
  file_.write(empty.data(), kLlmcHeaderBytes);
}

template <typename Stored>
void TokenFileWriter::append_as(std::span<const int32_t> tokens) {
  for (size_t begin = 0; begin < tokens.size(); begin += kTokensAtATime) {
    const auto part = tokens.subspan(begin, std::min(kTokensAtATime, tokens.size() - begin));
    buffer_.resize(part.size() * sizeof(Stored));
    for (size_t i = 0; i < part.size(); ++i) {
      if (part[i] < 0 || part[i] >= vocab_size_) {
        throw DataError(fmt::format("{}: token id {} is outside the vocabulary of {}",
                                    path_.string(), part[i], vocab_size_));
      }
      const auto stored = static_cast<Stored>(part[i]);
      std::memcpy(buffer_.data() + i * sizeof(Stored), &stored, sizeof(stored));
    }
    file_.write(buffer_.data(), buffer_.size());
  }
}

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  count_ += static_cast<int64_t>(tokens.size());
  if (count_ > std::numeric_limits<int32_t>::max()) {
    throw DataError(fmt::format("{}: {} tokens are more than an llm.c shard can count (2^31 - 1)",
                                path_.string(), count_));
  }
  if (vocab_size_ <= kU16Vocab) {
    append_as<uint16_t>(tokens);
  } else {
    append_as<uint32_t>(tokens);
  }
}

void TokenFileWriter::append_document(std::span<const int32_t> tokens,
                                      const std::vector<bool>& is_target) {
  check(tokens.size() == is_target.size(), "every token of a document is a target or not");
  auto at = static_cast<size_t>(count_);
  append(tokens);
  document_lengths_.push_back(static_cast<uint32_t>(tokens.size()));
  target_bits_.resize((static_cast<size_t>(count_) + 7) / 8);
  for (const bool target : is_target) {
    target_bits_[at / 8] |= static_cast<uint8_t>((target ? 1U : 0U) << (at % 8));
    ++at;
  }
}

void TokenFileWriter::commit() {
  const bool is_u16 = vocab_size_ <= kU16Vocab;
  std::array<int32_t, kLlmcHeaderWords> header = {};
  header[0] = is_u16 ? kLlmcMagicU16 : kLlmcMagicU32;
  header[1] = is_u16 ? kLlmcVersionU16 : kLlmcVersionU32;
  header[2] = static_cast<int32_t>(count_);
  if (!document_lengths_.empty()) {
    header[1] += kLlmcWithDocuments;
    header[3] = static_cast<int32_t>(document_lengths_.size());
    file_.write(document_lengths_.data(), document_lengths_.size() * sizeof(uint32_t));
    file_.write(target_bits_.data(), target_bits_.size());
  }
  file_.write_at(0, header.data(), kLlmcHeaderBytes);
  file_.commit();
}

}  // namespace fp8train
