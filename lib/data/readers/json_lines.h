#pragma once
// Lines of files that may be compressed, read in pieces.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace fp8train {

/// Calls `visit` with each line, without its line feed, and its number from 1 on. Throws DataError
/// with file and line where one is longer than 64 MiB.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view line, int64_t number)>& visit);

}  // namespace fp8train
