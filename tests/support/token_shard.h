#pragma once
// Token files for tests.

#include <filesystem>
#include <span>

#include "data/token_file_writer.h"

namespace fp8train::test {

/// One llm.c shard.
inline void write_shard(const std::filesystem::path& path, std::span<const int32_t> tokens,
                        int64_t vocab_size) {
  TokenFileWriter file(path, vocab_size);
  file.append(tokens);
  file.commit();
}

}  // namespace fp8train::test
