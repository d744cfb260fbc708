// The input is a file of token ids, in the format that its first byte says; every accepted id must
// be inside the vocabulary. Of an indexed data set two bytes more say how long the index is, which
// comes before the data.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/readers/data_format.h"
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

std::vector<const DataFormat*> token_formats() {
  std::vector<const DataFormat*> formats;
  std::copy_if(data_formats().begin(), data_formats().end(), std::back_inserter(formats),
               [](const DataFormat* format) { return format->has_tokens(); });
  return formats;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) {
    return 0;
  }
  static const std::vector<const DataFormat*> kFormats = token_formats();
  const DataFormat& format = *kFormats[data[0] % kFormats.size()];
  const std::string path =
      write_files(format, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  try {
    const auto store = format.open(path, kVocab, true);
    std::vector<int32_t> tokens(static_cast<size_t>(std::min(store->size(), kMostTokens)));
    store->read(0, static_cast<int64_t>(tokens.size()), tokens.data());
    for (const int32_t id : tokens) {
      if (id < 0 || id >= kVocab) {
        std::abort();
      }
    }
  } catch (const DataError&) {
  }
  return 0;
}
