#pragma once
// Whether files can be written where they are asked for, before the work that they are to hold.

#include <filesystem>
#include <string>

namespace fp8train {

/// The path itself, or the nearest one above it that exists.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

/// Why no files can be put into the folder, which need not exist yet; empty: they can. Found out by
/// making a folder and removing it again: permissions do not say it of file systems such as /proc.
std::string why_unwritable(const std::filesystem::path& folder);

/// Returns why the file cannot be written, which need not exist yet; empty: it can.
std::string why_no_file(const std::filesystem::path& file);

/// Throws ConfigError where the file is there and the option --overwrite is not given, DeviceError
/// where it cannot be written. `option` names the file.
void check_output_file(const std::filesystem::path& file, bool overwrite,
                       const char* option = "--output");

/// Writes the file whole or not at all, in a folder that is made for it. Throws DeviceError.
void write_output_file(const std::filesystem::path& file, const std::string& text);

}  // namespace fp8train
