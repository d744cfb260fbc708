#include "data/readers/sequence_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/input_file.h"

namespace fp8train {
namespace {

constexpr uint64_t kIndexHeader = 34;
constexpr size_t kEntriesPerRead = 1U << 16;
constexpr int64_t kMostTokens = int64_t{1} << 62;

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
  IndexReader(const std::filesystem::path& data, uint64_t data_bytes, bool with_documents)
      : file_(index_path(data)),
        name_(file_.path().string()),
        data_bytes_(data_bytes),
        with_documents_(with_documents) {}

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
                      ".bin file holds 16-bit ids without an index, its format is raw_u16",
                      name_));
    }
    uint64_t version = 0;
    std::memcpy(&version, header.data() + 9, sizeof(version));
    if (version != kIndexVersion) {
      throw DataError(fmt::format("{}: version {} (expected {})", name_, version, kIndexVersion));
    }
    const auto code = static_cast<uint8_t>(header[17]);
    const auto* const known = std::find_if(std::begin(kIndexCodes), std::end(kIndexCodes),
                                           [&](const auto& entry) { return entry.first == code; });
    if (known == std::end(kIndexCodes)) {
      throw DataError(
          fmt::format("{}: byte 17: elements of type {} (expected integers: 1, 2, 3, "
                      "4, 5 or 8)",
                      name_, code));
    }
    index_.type = known->second;
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
    Entries<int32_t> lengths(file_, kIndexHeader, sequences_);
    int64_t last = 0;
    int64_t tokens = 0;
    for (uint64_t i = 0; i < boundaries_; ++i) {
      const int64_t boundary = boundaries.next();
      if (boundary < last || (i == 0 && boundary != 0)) {
        throw DataError(fmt::format("{}: byte {}: document {} begins at sequence {}, after {}",
                                    name_, first + i * sizeof(int64_t), i, boundary, last));
      }
      if (with_documents_ && static_cast<uint64_t>(boundary) <= sequences_) {
        const int64_t begin = tokens;
        for (; last < boundary; ++last) tokens += lengths.next();
        if (tokens > begin) index_.table.ends.push_back(tokens);
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
  bool with_documents_;
  uint64_t sequences_ = 0;
  uint64_t boundaries_ = 0;
  SequenceIndex index_;
};

/// Whether the file is there and begins as an index does: another program may name its own so.
bool is_index(const std::filesystem::path& path) {
  if (!has_file(path)) return false;
  const InputFile file(path);
  std::array<char, kIndexMagic.size()> start = {};
  if (file.size() < start.size()) return false;
  file.read(0, start.data(), start.size());
  return std::string_view(start.data(), start.size()) == kIndexMagic;
}

}  // namespace

std::filesystem::path index_path(const std::filesystem::path& data) {
  std::filesystem::path index = data;
  return index.replace_extension(".idx");
}

SequenceIndex read_sequence_index(const std::filesystem::path& data, uint64_t data_bytes,
                                  bool with_documents) {
  return IndexReader(data, data_bytes, with_documents).read();
}

std::vector<std::filesystem::path> document_index_of(const std::filesystem::path& data,
                                                     bool with_documents) {
  const std::filesystem::path index = index_path(data);
  if (with_documents && is_index(index)) return {index};
  return {};
}

DocumentTable read_shard_documents(const TokenFile& shard) {
  const std::filesystem::path& path = shard.file.path();
  if (document_index_of(path).empty()) return {};
  const auto bytes_per_token = static_cast<uint64_t>(size_of(shard.type));
  const uint64_t end = shard.first_byte + static_cast<uint64_t>(shard.count) * bytes_per_token;
  SequenceIndex index = read_sequence_index(path, end, true);
  const auto first = static_cast<int64_t>(shard.first_byte / bytes_per_token);
  const bool is_one_run = index.runs.size() == 1 && index.runs[0].token_in_file == first;
  if (size_of(index.type) != size_of(shard.type) || index.tokens != shard.count ||
      !(is_one_run || shard.count == 0)) {
    throw DataError(
        fmt::format("{}: it has {} tokens of {} bytes in {} runs, and {} has {} of {}, from byte "
                    "{} on; they do not belong together",
                    index_path(path).string(), index.tokens, size_of(index.type), index.runs.size(),
                    path.string(), shard.count, bytes_per_token, shard.first_byte));
  }
  return std::move(index.table);
}

}  // namespace fp8train
