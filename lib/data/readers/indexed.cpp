// Indexed data sets (Megatron-LM: megatron/core/datasets/indexed_dataset.py): NAME.bin has token
// ids, NAME.idx says where its sequences are and which of them make a document. Sequences are read
// in the order of the index. All integers are little-endian:
//   9 bytes "MMIDIDX\0\0", u64 version 1, u8 type of the ids, u64 sequences, u64 documents,
//   i32 length of each sequence, i64 byte in NAME.bin where it begins,
//   i64 boundaries of documents, counted in sequences: 0, ..., sequences.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kIndexVersion = 1;
constexpr uint64_t kIndexHeader = 34;
constexpr size_t kEntriesPerRead = 1U << 16;
constexpr int64_t kMostTokens = int64_t{1} << 62;

/// Sequences that follow one another in NAME.bin.
struct SequenceRun {
  int64_t first_token;    ///< counted over all runs
  int64_t token_in_file;  ///< the same one
};

struct SequenceIndex {
  IdType type = IdType::u16;
  std::vector<SequenceRun> runs;
  int64_t tokens = 0;
  int64_t documents = 0;
};

std::filesystem::path index_path(const std::filesystem::path& path) {
  std::filesystem::path index = path;
  return index.replace_extension(".idx");
}

/// The class DType of the source.
std::optional<IdType> type_of_code(uint8_t code) {
  switch (code) {
    case 1:
      return IdType::u8;
    case 2:
      return IdType::i8;
    case 3:
      return IdType::i16;
    case 4:
      return IdType::i32;
    case 5:
      return IdType::i64;
    case 8:
      return IdType::u16;
    default:
      return std::nullopt;  // 6 and 7 are float64 and float32
  }
}

/// Numbers that follow one another in a file, read in pieces.
template <typename Value>
class Entries {
 public:
  Entries(const InputFile& file, uint64_t first_byte, uint64_t count)
      : file_(file), next_byte_(first_byte), left_(count) {}

  Value next() {
    if (position_ == values_.size()) {
      values_.resize(std::min<uint64_t>(left_, kEntriesPerRead));
      file_.read(next_byte_, values_.data(), values_.size() * sizeof(Value));
      next_byte_ += values_.size() * sizeof(Value);
      left_ -= values_.size();
      position_ = 0;
    }
    return values_[position_++];
  }

 private:
  const InputFile& file_;
  uint64_t next_byte_;
  uint64_t left_;
  std::vector<Value> values_;
  size_t position_ = 0;
};

class IndexReader {
 public:
  IndexReader(const std::filesystem::path& data_path, uint64_t data_bytes)
      : file_(index_path(data_path)), name_(file_.path().string()), data_bytes_(data_bytes) {}

  SequenceIndex read() {
    read_header();
    read_sequences();
    read_documents();
    return index_;
  }

 private:
  void read_header() {
    std::array<char, kIndexHeader> header = {};
    if (file_.size() < header.size()) {
      throw DataError(fmt::format("{}: {} bytes are less than the {} of an index's header", name_,
                                  file_.size(), kIndexHeader));
    }
    file_.read(0, header.data(), header.size());
    if (!std::string_view(header.data(), header.size()).starts_with(kIndexMagic)) {
      throw DataError(
          fmt::format("{}: the first bytes are not those of an index of token sequences; if the "
                      ".bin file holds 16-bit ids without an index, set format: raw_u16",
                      name_));
    }
    uint64_t version = 0;
    std::memcpy(&version, header.data() + 9, sizeof(version));
    if (version != kIndexVersion) {
      throw DataError(fmt::format("{}: version {} (expected {})", name_, version, kIndexVersion));
    }
    const auto code = static_cast<uint8_t>(header[17]);
    const std::optional<IdType> type = type_of_code(code);
    if (!type) {
      throw DataError(
          fmt::format("{}: byte 17: elements of type {} (expected integers: 1, 2, 3, "
                      "4, 5 or 8)",
                      name_, code));
    }
    index_.type = *type;
    std::memcpy(&sequences_, header.data() + 18, sizeof(sequences_));
    std::memcpy(&boundaries_, header.data() + 26, sizeof(boundaries_));
    check_size();
  }

  void check_size() const {
    constexpr uint64_t kPerSequence = sizeof(int32_t) + sizeof(int64_t);
    const uint64_t rest = file_.size() - kIndexHeader;
    const bool fits = sequences_ <= rest / kPerSequence && boundaries_ <= rest / sizeof(int64_t);
    const uint64_t expected = fits ? sequences_ * kPerSequence + boundaries_ * sizeof(int64_t) : 0;
    if (fits && rest == expected) {
      return;
    }
    if (fits && sequences_ > 0 && rest == expected + sequences_) {
      throw DataError(fmt::format(
          "{}: the sequences have modes, as in multimodal data sets; only text is read", name_));
    }
    throw DataError(
        fmt::format("{}: the header says {} sequences and {} boundaries of documents, which {} "
                    "bytes after it are not",
                    name_, sequences_, boundaries_, rest));
  }

  void read_sequences() {
    const auto bytes_per_token = static_cast<uint64_t>(size_of(index_.type));
    Entries<int32_t> lengths(file_, kIndexHeader, sequences_);
    Entries<int64_t> pointers(file_, kIndexHeader + sequences_ * sizeof(int32_t), sequences_);
    uint64_t end = 0;  // of the sequence before, in bytes
    for (uint64_t i = 0; i < sequences_; ++i) {
      const int32_t length = lengths.next();
      const int64_t pointer = pointers.next();
      const auto begin = static_cast<uint64_t>(pointer);
      const uint64_t bytes = static_cast<uint64_t>(length) * bytes_per_token;
      if (length < 0 || pointer < 0 || bytes > data_bytes_ || begin > data_bytes_ - bytes ||
          begin % bytes_per_token != 0) {
        throw DataError(fmt::format(
            "{}: sequence {} has {} tokens of {} bytes from byte {} on, which are not in the .bin "
            "file of {} bytes",
            name_, i, length, bytes_per_token, pointer, data_bytes_));
      }
      if (length == 0) {
        continue;
      }
      if (index_.runs.empty() || begin != end) {
        index_.runs.push_back({index_.tokens, static_cast<int64_t>(begin / bytes_per_token)});
      }
      end = begin + bytes;
      index_.tokens += length;
      if (index_.tokens > kMostTokens) {
        throw DataError(fmt::format("{}: more than 2^62 tokens", name_));
      }
    }
    const bool in_order =
        index_.runs.size() <= 1 && (end == 0 || index_.runs[0].token_in_file == 0);
    if (in_order && end != data_bytes_) {
      throw DataError(
          fmt::format("{}: its sequences end at byte {}, but the .bin file has {} bytes; they do "
                      "not belong together",
                      name_, end, data_bytes_));
    }
  }

  void read_documents() {
    const uint64_t first = file_.size() - boundaries_ * sizeof(int64_t);
    Entries<int64_t> boundaries(file_, first, boundaries_);
    int64_t last = 0;
    for (uint64_t i = 0; i < boundaries_; ++i) {
      const int64_t boundary = boundaries.next();
      if (boundary < last || (i == 0 && boundary != 0)) {
        throw DataError(fmt::format("{}: byte {}: document {} begins at sequence {}, after {}",
                                    name_, first + i * sizeof(int64_t), i, boundary, last));
      }
      last = boundary;
    }
    if (boundaries_ == 0 || static_cast<uint64_t>(last) != sequences_) {
      throw DataError(
          fmt::format("{}: the documents end at sequence {} of {}", name_, last, sequences_));
    }
    index_.documents = static_cast<int64_t>(boundaries_) - 1;
  }

  InputFile file_;
  std::string name_;
  uint64_t data_bytes_;
  uint64_t sequences_ = 0;
  uint64_t boundaries_ = 0;
  SequenceIndex index_;
};

class IndexedTokens final : public TokenStore {
 public:
  IndexedTokens(TokenFile file, SequenceIndex index, int64_t vocab_size)
      : file_(std::move(file)), index_(std::move(index)), vocab_size_(vocab_size) {}

  int64_t size() const override { return index_.tokens; }
  TokenFacts facts() const override {
    return {.type = name_of(index_.type), .documents = index_.documents};
  }

  void read(int64_t offset, int64_t count, int32_t* to) const override {
    auto next = std::upper_bound(
        index_.runs.begin(), index_.runs.end(), offset,
        [](int64_t token, const SequenceRun& run) { return token < run.first_token; });
    while (count > 0) {
      const SequenceRun& run = *(next - 1);
      const int64_t end = next == index_.runs.end() ? index_.tokens : next->first_token;
      const int64_t part = std::min(count, end - offset);
      file_.read(run.token_in_file + offset - run.first_token, part, vocab_size_, to);
      offset += part;
      count -= part;
      to += part;
      ++next;
    }
  }

 private:
  TokenFile file_;  ///< all of NAME.bin
  SequenceIndex index_;
  int64_t vocab_size_;
};

bool is_indexed(const FileHead& head) {
  std::error_code unseen;
  return head.path.extension() == ".bin" && std::filesystem::exists(index_path(head.path), unseen);
}

std::shared_ptr<const TokenStore> indexed_tokens(const std::filesystem::path& path,
                                                 int64_t vocab_size) {
  if (path.extension() == ".idx") {
    throw DataError(fmt::format("{}: is the index; name the .bin file", path.string()));
  }
  InputFile file(path);
  const uint64_t bytes = file.size();
  SequenceIndex index = IndexReader(path, bytes).read();
  const auto count = static_cast<int64_t>(bytes / static_cast<uint64_t>(size_of(index.type)));
  TokenFile tokens(std::move(file), index.type, 0, count);
  return std::make_shared<IndexedTokens>(std::move(tokens), std::move(index), vocab_size);
}

std::vector<std::filesystem::path> index_of(const std::filesystem::path& path) {
  return {index_path(path)};
}

}  // namespace

const DataFormat& indexed_format() {
  static constexpr DataFormat kFormat = {.name = "indexed",
                                         .content = DataContent::tokens,
                                         .matches = is_indexed,
                                         .open = indexed_tokens,
                                         .companions = index_of};
  return kFormat;
}

}  // namespace fp8train
