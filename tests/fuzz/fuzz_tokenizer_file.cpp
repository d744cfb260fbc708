// The input is a tokenizer's file behind a first byte that says which kind: tokenizer.json,
// tokenizer.model of sentencepiece, ranks of tiktoken. A tokenizer that is read encodes a text to
// ids inside of its vocabulary.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "data/tokenizer.h"
#include "data/tokenizers/registry.h"
#include "plain_message.h"
#include "scratch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) {
    return 0;
  }
  constexpr const char* kNames[] = {"tokenizer.json", "tokenizer.model", "cl100k_base.tiktoken"};
  const std::string folder = scratch_path() + "-tokenizer";
  static const int registered = std::atexit([] {
    std::error_code ignored;
    std::filesystem::remove_all(scratch_path() + "-tokenizer", ignored);
  });
  static_cast<void>(registered);
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/" + kNames[data[0] % 3];
  write_scratch(path, {reinterpret_cast<const char*>(data) + 1, size - 1});
  try {
    const auto tokenizer = fp8train::open_tokenizer(path);
    const std::string text =
        "The cat's \xC3\xA4rger: 12345 \xE2\x96\x81<s> </s>\n\n  aaaaaaaaaaaaaaaa";
    for (const int32_t id : tokenizer->encode(text)) {
      if (id < 0 || id >= tokenizer->vocab_size()) {
        std::abort();
      }
    }
  } catch (const fp8train::DataError& error) {
    require_plain(error);
  }
  return 0;
}
