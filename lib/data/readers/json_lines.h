#pragma once
// The lines of a file of JSON lines, which may be compressed.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace fp8train {

/// Calls `visit` for each line that is not blank; `where` is "FILE:NUMBER". Throws DataError for a
/// line of more than 64 MiB.
void for_each_json_line(
    const std::filesystem::path& path,
    const std::function<void(std::string_view line, const std::string& where)>& visit);

/// Whether a name, without the ending of a compression, is that of JSON lines.
bool is_json_lines(const std::filesystem::path& path);

}  // namespace fp8train
