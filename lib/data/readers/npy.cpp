// NumPy arrays of integers (numpy: numpy/lib/_format_impl.py, "Format Version 1.0" to 3.0): a magic
// number, a version, a dictionary in Python's notation, and the elements. All elements are tokens,
// in the order of the file.

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/readers/sequence_index.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kVersionEnd = 8;        // magic, major and minor version
constexpr uint32_t kMaxHeader = 1U << 20;  // numpy itself reads 10000 bytes

struct NpyArray {
  IdType type = IdType::u16;
  int64_t count = 1;
};

std::optional<IdType> integer_type(std::string_view descr) {
  constexpr std::string_view kLetters = "ui";
  constexpr std::array<IdType, 8> kTypes = {IdType::u8,  IdType::i8,  IdType::u16, IdType::i16,
                                            IdType::u32, IdType::i32, IdType::u64, IdType::i64};
  for (const IdType type : kTypes) {
    const char letter = kLetters[static_cast<size_t>(type) % 2];
    const std::string code = fmt::format("{}{}", letter, size_of(type));
    if (descr == "<" + code || (size_of(type) == 1 && descr == "|" + code)) {
      return type;
    }
  }
  return std::nullopt;
}

/// Reads {'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }, in any order.
class NpyHeader {
 public:
  NpyHeader(std::string_view text, uint64_t first_byte, std::string file)
      : text_(text), first_byte_(first_byte), file_(std::move(file)) {}

  NpyArray read() {
    expect('{');
    while (!next_is('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr") {
        read_type();
      } else if (key == "fortran_order") {
        read_order();
      } else if (key == "shape") {
        read_shape();
      } else {
        fail(fmt::format("the key '{}' is unknown", key));
      }
      if (!next_is('}')) {
        expect(',');
      }
    }
    if (!has_type_ || !has_order_ || !has_shape_) {
      fail("descr, fortran_order or shape is missing");
    }
    if (fortran_order_ && extents_ > 1) {
      throw DataError(fmt::format(
          "{}: the array is stored by columns; save it with numpy.ascontiguousarray", file_));
    }
    return array_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: the header is damaged at byte {}: {}", file_,
                                first_byte_ + position_, what));
  }

  void skip_spaces() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) {
      ++position_;
    }
  }

  bool next_is(char wanted) {
    skip_spaces();
    return position_ < text_.size() && text_[position_] == wanted;
  }

  void expect(char wanted) {
    if (!next_is(wanted)) {
      fail(fmt::format("expected '{}'", wanted));
    }
    ++position_;
  }

  std::string_view quoted() {
    expect('\'');
    const size_t end = text_.find('\'', position_);
    if (end == std::string_view::npos) {
      fail("a text without an end");
    }
    const std::string_view value = text_.substr(position_, end - position_);
    position_ = end + 1;
    return value;
  }

  void read_type() {
    if (!next_is('\'')) {
      throw DataError(fmt::format("{}: its elements are records, not integers", file_));
    }
    const std::string_view descr = quoted();
    const std::optional<IdType> type = integer_type(descr);
    if (!type) {
      throw DataError(fmt::format(
          "{}: elements of type '{}' (expected little-endian integers of 1 to 8 bytes, such as "
          "'<u2')",
          file_, descr));
    }
    array_.type = *type;
    has_type_ = true;
  }

  void read_order() {
    skip_spaces();
    const std::string_view rest = text_.substr(position_);
    fortran_order_ = rest.starts_with("True");
    if (!fortran_order_ && !rest.starts_with("False")) {
      fail("expected True or False");
    }
    position_ += fortran_order_ ? 4 : 5;
    has_order_ = true;
  }

  int64_t extent() {
    int64_t value = 0;
    const size_t begin = position_;
    while (position_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[position_]))) {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{text_[position_] - '0'}, &value)) {
        fail("an extent above 2^63");
      }
      ++position_;
    }
    if (position_ == begin) {
      fail("expected an extent");
    }
    return value;
  }

  void read_shape() {
    expect('(');
    while (!next_is(')')) {
      if (__builtin_mul_overflow(array_.count, extent(), &array_.count)) {
        fail("more than 2^63 elements");
      }
      ++extents_;
      if (!next_is(')')) {
        expect(',');
      }
    }
    expect(')');
    has_shape_ = true;
  }

  std::string_view text_;
  uint64_t first_byte_;
  std::string file_;
  size_t position_ = 0;
  NpyArray array_;
  int extents_ = 0;
  bool fortran_order_ = false;
  bool has_type_ = false, has_order_ = false, has_shape_ = false;
};

std::shared_ptr<const TokenStore> npy_tokens(const std::filesystem::path& path, int64_t vocab_size,
                                             bool with_documents) {
  TokenFile file = open_npy(path);
  DocumentTable documents = with_documents ? read_shard_documents(file) : DocumentTable();
  return std::make_shared<FileTokens>(std::move(file), vocab_size, std::move(documents));
}

}  // namespace

TokenFile open_npy(const std::filesystem::path& path) {
  InputFile file(path);
  const std::string name = path.string();
  std::array<char, kVersionEnd> start = {};
  if (file.size() < start.size()) {
    throw DataError(
        fmt::format("{}: {} bytes are less than the {} of a .npy file's magic number "
                    "and version",
                    name, file.size(), kVersionEnd));
  }
  file.read(0, start.data(), start.size());
  if (!std::string_view(start.data(), start.size()).starts_with(kMagic)) {
    throw DataError(fmt::format("{}: the first bytes are not those of a .npy file", name));
  }
  const int major = static_cast<unsigned char>(start[kMagic.size()]);
  if (major < 1 || major > 3) {
    throw DataError(fmt::format("{}: .npy version {} (expected 1, 2 or 3)", name, major));
  }
  const size_t length_bytes = major == 1 ? sizeof(uint16_t) : sizeof(uint32_t);
  const uint64_t begin = kVersionEnd + length_bytes;
  uint32_t length = 0;
  if (file.size() >= begin) {
    file.read(kVersionEnd, &length, length_bytes);
  }
  if (file.size() < begin || length > kMaxHeader || file.size() - begin < length) {
    throw DataError(
        fmt::format("{}: a header of {} bytes from byte {} on is beyond the file's {} "
                    "bytes, or beyond {}",
                    name, length, begin, file.size(), kMaxHeader));
  }
  std::string header(length, '\0');
  file.read(begin, header.data(), header.size());
  const NpyArray array = NpyHeader(header, begin, name).read();
  const uint64_t first = begin + length;
  const auto bytes = static_cast<uint64_t>(size_of(array.type));
  const uint64_t content = file.size() - first;
  if (content % bytes != 0 || content / bytes != static_cast<uint64_t>(array.count)) {
    throw DataError(
        fmt::format("{}: the header says {} elements of {} bytes, but {} bytes follow it", name,
                    array.count, bytes, content));
  }
  return {std::move(file), array.type, first, array.count};
}

const DataFormat& npy_format() {
  static constexpr DataFormat kFormat = {
      .name = "npy",
      .suffixes = {".npy"},
      .content = DataContent::tokens,
      .matches = [](const FileHead& head) { return head.bytes.starts_with(kMagic); },
      .open = npy_tokens,
      .companions = document_index_of};
  return kFormat;
}

}  // namespace fp8train
