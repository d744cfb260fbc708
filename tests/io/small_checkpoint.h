#pragma once
// Small checkpoints for tests.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "support/files.h"
#include "support/save_checkpoint.h"
#include "support/temp_dir.h"

namespace fp8train::test {

namespace fs = std::filesystem;

/// Saves a small checkpoint whose content follows from the step.
inline fs::path save(const fs::path& root, int64_t step, const std::string& run_id = "run-1") {
  std::vector<float> weights(300);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(step) + static_cast<float>(i);
  }
  const std::vector<uint8_t> codes(57, static_cast<uint8_t>(step));
  CheckpointContents contents;
  contents.run_id = run_id;
  contents.files = {
      {"model.safetensors",
       {{"w", DType::f32, {3, 100}, weights.data()}, {"codes", DType::e4m3, {57}, codes.data()}},
       {}},
      {"state.json", {}, std::string("{\"step\":").append(std::to_string(step)).append("}\n")}};
  return save_checkpoint(root, step, contents);
}

inline std::vector<int64_t> steps_in(const fs::path& root) {
  std::vector<int64_t> steps;
  for (const CheckpointFolder& folder : find_checkpoints(root)) {
    steps.push_back(folder.step);
  }
  return steps;
}

inline std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline void flip_bit(const fs::path& path, uint64_t byte, int bit) {
  std::string bytes = read_file(path);
  bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
  write_file(path, bytes);
}

}  // namespace fp8train::test
