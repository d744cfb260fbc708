#include "data/token_file_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "data/readers/data_format.h"
#include "data/readers/sequence_index.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

constexpr size_t kTokensAtATime = 64U << 10;
constexpr size_t kLlmcHeaderWords = kLlmcHeaderBytes / sizeof(int32_t);

/// numpy: lib/_format_impl.py, _wrap_header and _write_array_header: magic number and version, two
/// bytes of length, and a dictionary filled up with spaces to a multiple of 64 bytes, so that an
/// extent of 21 digits fits.
constexpr size_t kNpyHeaderBytes = 128;
constexpr std::string_view kNpyBegin("\x93NUMPY\x01\x00\x76\x00", 10);

/// DType.optimal_dtype (Megatron-LM: megatron/core/datasets/indexed_dataset.py).
constexpr int64_t kIndexedU16Vocab = 65500;

struct FormatFacts {
  const DataFormat& (*reader)();
  size_t header_bytes;
  int64_t u16_vocab;  ///< the largest vocabulary whose ids are stored in 16 bits
};

/// In the order of TokenFileFormat.
constexpr FormatFacts kFormats[] = {{llmc_format, kLlmcHeaderBytes, kU16Vocab},
                                    {npy_format, kNpyHeaderBytes, kU16Vocab},
                                    {indexed_format, 0, kIndexedU16Vocab - 1}};

const FormatFacts& facts_of(TokenFileFormat format) {
  return kFormats[static_cast<size_t>(format)];
}

template <typename Value>
void write_values(AtomicFile& file, const std::vector<Value>& values) {
  file.write(values.data(), values.size() * sizeof(Value));
}

}  // namespace

TokenFileFormat token_file_format_named(std::string_view name, std::string_view option) {
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (kFormats[i].reader().name == name) return static_cast<TokenFileFormat>(i);
  }
  throw ConfigError(fmt::format("{}: Unknown format '{}' (expected {})", option, name,
                                alternatives(token_file_formats())));
}

std::vector<std::string_view> token_file_formats() {
  std::vector<std::string_view> names;
  for (const FormatFacts& facts : kFormats) names.push_back(facts.reader().name);
  return names;
}

std::string_view name_of(TokenFileFormat format) {
  return facts_of(format).reader().name;
}

std::string_view extension_of(TokenFileFormat format) {
  return facts_of(format).reader().suffixes.front();
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size,
                                 TokenFileFormat format)
    : file_(path),
      path_(path),
      vocab_size_(vocab_size),
      format_(format),
      is_u16_(vocab_size <= facts_of(format).u16_vocab) {
  const std::vector<char> empty(facts_of(format).header_bytes);
  file_.write(empty.data(), empty.size());
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
    throw DataError(fmt::format("{}: {} tokens are more than a file can count (2^31 - 1)",
                                path_.string(), count_));
  }
  if (is_u16_) {
    append_as<uint16_t>(tokens);
  } else {
    append_as<uint32_t>(tokens);
  }
}

void TokenFileWriter::append_document(std::span<const int32_t> tokens,
                                      const std::vector<bool>& is_target) {
  check(tokens.size() == is_target.size(), "every token of a document is a target or not");
  check(format_ == TokenFileFormat::llmc, "targets are noted in llmc files only");
  auto at = static_cast<size_t>(count_);
  append(tokens);
  end_document();
  target_bits_.resize((static_cast<size_t>(count_) + 7) / 8);
  for (const bool target : is_target) {
    target_bits_[at / 8] |= static_cast<uint8_t>((target ? 1U : 0U) << (at % 8));
    ++at;
  }
}

void TokenFileWriter::end_document() {
  if (count_ > ended_) lengths_.push_back(static_cast<int32_t>(count_ - ended_));
  ended_ = count_;
}

void TokenFileWriter::write_llmc_header() {
  std::array<int32_t, kLlmcHeaderWords> header = {};
  header[0] = is_u16_ ? kLlmcMagicU16 : kLlmcMagicU32;
  header[1] = is_u16_ ? kLlmcVersionU16 : kLlmcVersionU32;
  header[2] = static_cast<int32_t>(count_);
  if (!target_bits_.empty()) {
    header[1] += kLlmcWithDocuments;
    header[3] = static_cast<int32_t>(lengths_.size());
    write_values(file_, lengths_);
    write_values(file_, target_bits_);
  }
  file_.write_at(0, header.data(), kLlmcHeaderBytes);
}

void TokenFileWriter::write_npy_header() {
  std::string header(kNpyBegin);
  header += fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}",
                        is_u16_ ? "<u2" : "<i4", count_);
  header.resize(kNpyHeaderBytes - 1, ' ');
  header += '\n';
  file_.write_at(0, header.data(), header.size());
}

/// Dialogues have a table in the file itself.
bool TokenFileWriter::has_index() const {
  return format_ == TokenFileFormat::indexed || (!lengths_.empty() && target_bits_.empty());
}

/// Committed before the .bin file, which without an index would be taken for bare 16-bit ids.
void TokenFileWriter::write_index() const {
  const uint64_t sequences = lengths_.size();
  std::vector<int64_t> pointers;
  std::vector<int64_t> documents = {0};
  auto begin = static_cast<int64_t>(facts_of(format_).header_bytes);
  for (const int32_t length : lengths_) {
    pointers.push_back(begin);
    begin += int64_t{length} * (is_u16_ ? 2 : 4);
    documents.push_back(static_cast<int64_t>(pointers.size()));
  }
  AtomicFile file(index_path(path_));
  file.write(kIndexMagic);
  file.write(&kIndexVersion, sizeof(kIndexVersion));
  for (const auto& [code, type] : kIndexCodes) {
    if (type == (is_u16_ ? IdType::u16 : IdType::i32)) file.write(&code, 1);
  }
  write_values(file, std::vector<uint64_t>{sequences, sequences + 1});
  write_values(file, lengths_);
  write_values(file, pointers);
  write_values(file, documents);
  file.commit();
}

void TokenFileWriter::commit() {
  if (has_index()) {
    end_document();
    write_index();
  }
  if (format_ == TokenFileFormat::llmc) write_llmc_header();
  if (format_ == TokenFileFormat::npy) write_npy_header();
  file_.commit();
}

}  // namespace fp8train
