#pragma once
// Lines of files that may be compressed, read in pieces; lines of JSON among them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fp8train {

/// Calls `visit` with each line, without its line feed, and its number from 1 on. Throws DataError
/// with file and line where one is longer than 64 MiB.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view line, int64_t number)>& visit);
/// The same for each line that is not blank; `where` is "FILE:NUMBER".
void for_each_json_line(
    const std::filesystem::path& path,
    const std::function<void(std::string_view line, const std::string& where)>& visit);

/// A line of JSON. Throws DataError, which begins with `where` and says what is wrong at which
/// column.
nlohmann::json parse_json_line(std::string_view line, const std::string& where);

}  // namespace fp8train
