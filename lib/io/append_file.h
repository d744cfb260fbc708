#pragma once
// Files that grow by whole records while others read them.

#include <filesystem>
#include <string_view>

namespace fp8train {

/// Opens `path`, which is made if it is missing, and returns the descriptor, which the caller
/// closes with close_file(). Throws DeviceError.
int open_to_append(const std::filesystem::path& path);

/// Appends `record`, in one write if the system accepts that. Throws DeviceError when the record
/// cannot be written whole; the bytes already written are taken back, so that the next record
/// begins on its own.
void append_whole(int descriptor, const std::filesystem::path& path, std::string_view record);

/// Closes the descriptor, unless it is -1.
void close_file(int descriptor);

}  // namespace fp8train
