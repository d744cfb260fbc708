#pragma once
// The folder for results that the program can compute again: FP8TRAIN_CACHE_DIR, else
// XDG_CACHE_HOME or ~/.cache with a folder fp8train in it. An account without a home directory has
// one in the system's folder of temporary files, which nobody else can have written into.

#include <filesystem>

namespace fp8train {

/// Returns the path of the program's cache folder. One of temporary files is made; others need not
/// exist yet. Throws DeviceError where it cannot be made.
std::filesystem::path cache_folder();

}  // namespace fp8train
