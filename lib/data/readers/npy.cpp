// NumPy arrays of integers (numpy: numpy/lib/_format_impl.py, "Format Version 1.0" to 3.0): a magic
// number, a version, a dictionary in Python's notation, and the elements. All elements are tokens,
// in the order of the file.

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json_reader.h"
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

/// Returns {'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }, which is Python, as JSON.
/// The bytes behind the last '}' are padding.
std::string as_json(std::string text) {
  text.resize(text.rfind('}') + 1);
  constexpr std::string_view kPython = "'()TF";
  constexpr std::string_view kJson = "\"[]tf";
  char* last = nullptr;  // the character before this one, spaces left out
  for (char& c : text) {
    if (const size_t i = kPython.find(c); i != std::string_view::npos) c = kJson[i];
    if (last != nullptr && *last == ',' && (c == ']' || c == '}')) *last = ' ';
    if (c != ' ' && c != '\n') last = &c;
  }
  return text;
}

NpyArray read_header(const std::string& text, const std::string& file) {
  const std::string where = file + ": the header";
  const auto damaged = [&](std::string_view what) {
    return DataError(fmt::format("{} is damaged: {}", where, what));
  };
  nlohmann::json header;
  try {
    header = parse_json(as_json(text), where);
  } catch (const DataError&) {
    throw damaged("it is not {'descr': ..., 'fortran_order': ..., 'shape': (...), }");
  }
  if (header.size() != 3 || !header.contains("descr") || !header.contains("fortran_order") ||
      !header.contains("shape")) {
    throw damaged("its keys are not descr, fortran_order and shape");
  }
  const nlohmann::json& descr = header["descr"];
  const nlohmann::json& by_columns = header["fortran_order"];
  const nlohmann::json& shape = header["shape"];
  if (!by_columns.is_boolean() || !shape.is_array()) {
    throw damaged("fortran_order is not True or False, or shape is not a tuple");
  }
  if (!descr.is_string()) {
    throw DataError(fmt::format("{}: its elements are records, not integers", file));
  }
  const std::optional<IdType> type = integer_type(descr.get<std::string_view>());
  if (!type) {
    throw DataError(fmt::format(
        "{}: elements of type '{}' (expected little-endian integers of 1 to 8 bytes, such as "
        "'<u2')",
        file, descr.get<std::string_view>()));
  }
  NpyArray array = {.type = *type};
  for (const nlohmann::json& extent : shape) {
    if (!extent.is_number_unsigned() ||
        __builtin_mul_overflow(array.count, extent.get<uint64_t>(), &array.count)) {
      throw damaged("an extent is not a whole number, or there are more than 2^63 elements");
    }
  }
  if (by_columns.get<bool>() && shape.size() > 1) {
    throw DataError(fmt::format(
        "{}: the array is stored by columns; save it with numpy.ascontiguousarray", file));
  }
  return array;
}

std::shared_ptr<const TokenStore> npy_tokens(const std::filesystem::path& path, int64_t vocab_size,
                                             bool with_documents) {
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
  if (length > kMaxHeader) {
    throw DataError(
        fmt::format("{}: the header is damaged: it says that it has {} bytes, and at "
                    "most {} are read",
                    name, length, kMaxHeader));
  }
  if (file.size() < begin + length) {
    throw DataError(
        fmt::format("{}: the file is cut off in its header, which ends {} byte {}: it "
                    "has {} bytes; copy it again",
                    name, file.size() < begin ? "after" : "at", begin + length, file.size()));
  }
  std::string header(length, '\0');
  file.read(begin, header.data(), header.size());
  const NpyArray array = read_header(header, name);
  const uint64_t first = begin + length;
  const auto bytes = static_cast<uint64_t>(size_of(array.type));
  const uint64_t content = file.size() - first;
  if (content % bytes != 0 || content / bytes != static_cast<uint64_t>(array.count)) {
    throw DataError(
        fmt::format("{}: the header says {} elements of {} bytes, but {} bytes follow it", name,
                    array.count, bytes, content));
  }
  TokenFile tokens = {std::move(file), array.type, first, array.count};
  DocumentTable documents = with_documents ? read_shard_documents(tokens) : DocumentTable();
  return std::make_shared<FileTokens>(std::move(tokens), vocab_size, std::move(documents));
}

}  // namespace

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
