// Headerless 16-bit ids, as nanoGPT's prepare scripts write them (karpathy/nanoGPT:
// data/openwebtext/prepare.py).

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "data/readers/data_format.h"
#include "data/token_file.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr size_t kProbeBytes = 4096;

bool is_text(std::string_view head) {
  const bool has_control = std::any_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r' && byte != '\f') ||
           byte == 0x7F;
  });
  return !head.empty() && !has_control && is_utf8(without_cut_end(head));
}

/// The largest 16-bit values at even and at odd positions of the file's begin, middle and end.
std::array<int, 2> largest_by_parity(const InputFile& file) {
  std::array<int, 2> largest = {0, 0};
  const uint64_t words = file.size() / sizeof(uint16_t);
  const uint64_t part = std::min<uint64_t>(words, kProbeBytes) / 2 * 2;
  std::vector<uint16_t> ids(part);
  for (const uint64_t quarters : {0, 2, 4}) {
    const uint64_t begin = (words - part) / 4 * quarters / 2 * 2;
    file.read(begin * sizeof(uint16_t), ids.data(), part * sizeof(uint16_t));
    for (size_t i = 0; i < ids.size(); ++i) {
      largest[i % 2] = std::max<int>(largest[i % 2], ids[i]);
    }
  }
  return largest;
}

/// Why a .bin file without a known header hardly holds 16-bit ids; empty where nothing says so.
std::string why_not_u16(const FileHead& head) {
  const InputFile& file = head.file;
  constexpr uint64_t kFewIds = 8;
  constexpr int kHighestHalf = 3;  // of a 32-bit id: vocabularies have less than 2^18 entries
  constexpr int kSmallVocabulary = 256;
  if (is_text(head.bytes)) {
    return fmt::format("its content is text; set {} {}", head.key,
                       alternatives(text_format_names()));
  }
  if (file.size() < kFewIds * sizeof(uint16_t)) {
    return "";
  }
  const auto [even, odd] = largest_by_parity(file);
  if (odd == 0 || even == 0 || (odd <= kHighestHalf && even >= kSmallVocabulary)) {
    return "every second 16-bit value is 0 or nearly so, as in files of 32-bit or 64-bit ids; "
           "write the ids as 16-bit ones, as llm.c shards or as .npy";
  }
  return "";
}

bool is_raw_u16(const FileHead& head) {
  if (!raw_u16_format().has_suffix(head.path)) {
    return false;
  }
  if (const std::string reason = why_not_u16(head); !reason.empty()) {
    throw DataError(fmt::format(
        "{}: the file has no header of a format that is known, and {}. If it holds 16-bit ids "
        "nevertheless, set {} raw_u16",
        head.path.string(), reason, head.key));
  }
  return true;
}

std::shared_ptr<const TokenStore> raw_u16_tokens(const std::filesystem::path& path,
                                                 int64_t vocab_size, bool /*with_documents*/) {
  InputFile file(path);
  if (file.size() % 2 != 0) {
    throw DataError(
        fmt::format("{}: {} bytes are not a whole number of u16 tokens; the file is cut "
                    "off or has another format",
                    path.string(), file.size()));
  }
  const auto count = static_cast<int64_t>(file.size() / 2);
  return std::make_shared<FileTokens>(TokenFile{std::move(file), IdType::u16, 0, count},
                                      vocab_size);
}

}  // namespace

const DataFormat& raw_u16_format() {
  static constexpr DataFormat kFormat = {.name = "raw_u16",
                                         .suffixes = {".bin"},
                                         .content = DataContent::tokens,
                                         .matches = is_raw_u16,
                                         .open = raw_u16_tokens};
  return kFormat;
}

}  // namespace fp8train
