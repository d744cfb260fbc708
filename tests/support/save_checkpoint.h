#pragma once
// A whole checkpoint of given files.

#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"

namespace fp8train {

struct CheckpointContents {
  std::string run_id;
  std::vector<CheckpointFile> files;
};

/// Writes root/step-%06d whole or not at all, as a run does, and returns its path.
inline std::filesystem::path save_checkpoint(const std::filesystem::path& root, int64_t step,
                                             const CheckpointContents& contents) {
  const std::filesystem::path partial = begin_checkpoint(root, step);
  try {
    std::vector<FileRecord> records;
    for (const CheckpointFile& file : contents.files) {
      records.push_back(write_checkpoint_file(partial, file));
      read_back(partial, records.back());
    }
    std::filesystem::path published =
        commit_checkpoint(root, step, contents.run_id, records, Verify::sizes);
    tidy_checkpoints(root, step);
    return published;
  } catch (...) {
    discard_partial(root, step);
    throw;
  }
}

}  // namespace fp8train
