#pragma once
// The folder for results that the program can compute again: FP8TRAIN_CACHE_DIR, else
// XDG_CACHE_HOME or ~/.cache with a folder fp8train in it, else one in the system's folder of
// temporary files.

#include <filesystem>

namespace fp8train {

/// Not necessarily there yet.
std::filesystem::path cache_folder();

}  // namespace fp8train
