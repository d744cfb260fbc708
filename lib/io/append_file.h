#pragma once
// Files that grow by whole records while others read them.

#include <filesystem>
#include <string_view>

namespace fp8train {

/// Opens `path`, which is made if it is missing, and returns the descriptor. Throws DeviceError.
int open_to_append(const std::filesystem::path& path);

/// Appends in one write where the system takes it so. Throws DeviceError when the record cannot be
/// written whole; what was written of it is taken back, so that the next one begins on its own.
void append_whole(int descriptor, const std::filesystem::path& path, std::string_view record);

/// Closes the descriptor, unless it is -1.
void close_file(int descriptor);

}  // namespace fp8train
