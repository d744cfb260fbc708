#pragma once
// Files that grow by whole records while others read them.

#include <filesystem>
#include <string_view>

namespace fp8train {

/// Throws DeviceError if `path` is a link or anything else that is no regular file: whoever may
/// write into the folder could have put it there.
void require_regular_file(const std::filesystem::path& path);

/// Opens `path`, which is made if it is missing, and returns the descriptor, which the caller
/// closes with close_file(). Throws DeviceError, also as require_regular_file().
int open_to_append(const std::filesystem::path& path);

/// Appends `record`, in one write if the system accepts that. Throws DeviceError when the record
/// cannot be written whole; the bytes already written are taken back, so that the next record
/// begins on its own.
void append_whole(int descriptor, const std::filesystem::path& path, std::string_view record);

/// Flushes the content of a file to disk; does nothing if there is none. Throws DeviceError.
void sync_content(const std::filesystem::path& path);

/// Closes the descriptor, unless it is -1.
void close_file(int descriptor);

}  // namespace fp8train
