// The input is a token file, read as llm.c shard or raw u16 as its first byte says; every accepted
// id must be inside the vocabulary.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"

namespace {

const std::string& scratch_file() {
  static const std::string path = "/dev/shm/fp8train-fuzz-" + std::to_string(::getpid());
  static const int registered = std::atexit([] { ::unlink(scratch_file().c_str()); });
  static_cast<void>(registered);
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kVocab = 50257;
  if (size < 1) {
    return 0;
  }
  const std::string& path = scratch_file();
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  const auto kind =
      data[0] % 2 == 0 ? fp8train::TokenFileKind::llmc : fp8train::TokenFileKind::raw_u16;
  try {
    const fp8train::TokenFile file(path, kind);
    std::vector<int32_t> tokens(static_cast<size_t>(file.size()));
    file.read(0, file.size(), kVocab, tokens.data());
    for (const int32_t id : tokens) {
      if (id < 0 || id >= kVocab) {
        std::abort();
      }
    }
  } catch (const fp8train::DataError&) {
  }
  return 0;
}
