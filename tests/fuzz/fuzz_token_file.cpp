// The input is a data file, in the format that its first byte says. Of token ids every accepted one
// must be inside the vocabulary; documents of JSON lines must be UTF-8, a text is its file. Of an
// indexed data set two bytes more say how long the index is, which comes before the data.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/utf8.h"
#include "plain_message.h"
#include "scratch_file.h"

namespace {

using namespace fp8train;

constexpr int64_t kVocab = 50257;
constexpr int64_t kMostTokens = 1 << 20;  // sequences of an index may overlap

/// Writes the files of the input, and returns the one that is named.
std::string write_files(const DataFormat& format, std::string bytes) {
  const std::string data = scratch_path() + ".bin";
  const std::string index = scratch_path() + ".idx";
  static const int registered = std::atexit([] {
    std::remove((scratch_path() + ".bin").c_str());
    std::remove((scratch_path() + ".idx").c_str());
  });
  static_cast<void>(registered);
  if (&format == &indexed_format()) {
    bytes.resize(std::max<size_t>(bytes.size(), 2));
    const auto low = static_cast<uint8_t>(bytes[0]);
    const auto high = static_cast<uint8_t>(bytes[1]);
    const size_t length = std::min<size_t>(low + 256U * high, bytes.size() - 2);
    write_scratch(index, bytes.substr(2, length));
    bytes.erase(0, 2 + length);
  }
  write_scratch(data, bytes);
  return data;
}

void check_tokens(const DataFormat& format, const std::string& path) {
  const auto store = format.open(path, kVocab, true);
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(store->size(), kMostTokens)));
  store->read(0, static_cast<int64_t>(tokens.size()), tokens.data());
  for (const int32_t id : tokens) {
    if (id < 0 || id >= kVocab) {
      std::abort();
    }
  }
}

void check_documents(const DataFormat& format, const std::string& path, std::string_view bytes) {
  const bool is_compressed = bytes.starts_with("\x1F\x8B") || bytes.starts_with("\x28\xB5\x2F\xFD");
  format.for_each_document(path, {.text_key = "text"}, [&](const std::string& document) {
    if (format.content == DataContent::text ? !is_compressed && document != bytes
                                            : !is_utf8(document)) {
      std::abort();
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) {
    return 0;
  }
  const DataFormat& format = *data_formats()[data[0] % data_formats().size()];
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string path = write_files(format, bytes);
  try {
    if (format.has_tokens()) {
      check_tokens(format, path);
    } else {
      check_documents(format, path, bytes);
    }
  } catch (const DataError& error) {
    require_plain(error);
  }
  return 0;
}
