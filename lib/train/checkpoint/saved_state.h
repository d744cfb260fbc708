#pragma once
// The tensors of a checkpoint's optimizer files, whoever wrote them. For source files of this
// folder only. Host memory; synchronous.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/safetensors/safetensors.h"

namespace fp8train {

/// Every tensor of a checkpoint's optimizer files, by name without "@first".
class SavedState {
 public:
  /// Opens the files that the manifest lists. Throws CheckpointError.
  explicit SavedState(const std::filesystem::path& checkpoint);

  /// Returns the type of its elements. Throws CheckpointError where the files have none.
  DType dtype_of(const std::string& name) const;

  /// Returns how many elements of it the files have.
  int64_t count_of(const std::string& name) const;

  /// Returns elements first .. first + count - 1 of the whole. Throws CheckpointError where some
  /// are missing or none that training can have left, OtherRunError where they are of another type.
  std::vector<uint8_t> read(const std::string& name, DType dtype, int64_t first,
                            int64_t count) const;

  /// Returns where the part of it with this element begins: file and byte.
  std::pair<size_t, uint64_t> position(const std::string& name, int64_t first) const;

  /// Throws CheckpointError where a file of which something has been read is not the manifest's.
  void require_hashes() const;

 private:
  struct Range {
    size_t file;
    const SafetensorsEntry* entry;
    int64_t first = 0;
  };

  std::span<const Range> saved_ranges(const std::string& name) const;
  void add_file(const std::filesystem::path& path);

  std::filesystem::path checkpoint_;
  CheckpointManifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  mutable std::set<size_t> used_;
  std::map<std::string, std::vector<Range>> ranges_;
};

}  // namespace fp8train
