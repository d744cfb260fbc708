#pragma once
// The folder for results that the program can compute again: FP8TRAIN_CACHE_DIR, else
// XDG_CACHE_HOME or ~/.cache with a folder fp8train in it, else one in the system's folder of
// temporary files.

#include <filesystem>

namespace fp8train {

/// Returns the path of the program's cache folder, which need not exist yet.
std::filesystem::path cache_folder();

}  // namespace fp8train
