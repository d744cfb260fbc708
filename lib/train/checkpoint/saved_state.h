#pragma once
// The tensors that ranks have written in parts, whoever wrote them: the optimizer's files of a
// checkpoint, and while one is written the parts of weights. For source files of this folder only.
// Host memory; synchronous.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/state_tensors.h"
#include "io/checkpoint/checkpoint.h"
#include "io/safetensors/safetensors.h"

namespace fp8train {

/// Every tensor of such files, by name without '@' and what follows.
class SavedState {
 public:
  /// Opens the files that the manifest lists. Throws CheckpointError.
  explicit SavedState(const std::filesystem::path& checkpoint);
  /// Opens files that no manifest lists.
  SavedState(const std::filesystem::path& folder, const std::vector<std::string>& files);

  /// Returns the type of its elements. Throws CheckpointError where the files have none.
  DType dtype_of(const std::string& name) const;

  /// Returns how many elements of it the files have.
  int64_t count_of(const std::string& name) const;

  /// Returns the elements of a box of the whole, row after row. Throws CheckpointError where some
  /// are missing or none that training can have left, OtherRunError where they are of another type.
  std::vector<uint8_t> read(const std::string& name, DType dtype, const StateBox& box) const;

  /// Returns where the part of it with this element begins: file and byte.
  std::pair<size_t, uint64_t> position(const std::string& name, int64_t first) const;

  /// Throws CheckpointError where a file of which something has been read is not the manifest's, if
  /// there is one.
  void require_hashes() const;

 private:
  /// Elements first .. of the whole. With columns: a box of them from a row on, `first` is the
  /// column that it begins with.
  struct Range {
    size_t file = 0;
    const SafetensorsEntry* entry = nullptr;
    int64_t first = 0, row = 0, columns = 0;
  };

  std::span<const Range> saved_ranges(const std::string& name) const;
  void add_file(const std::filesystem::path& path, SafetensorsFile::Reads reads);
  int64_t read_overlap(const std::string& name, const Range& saved, const StateBox& wanted,
                       DType dtype, uint8_t* to) const;

  std::filesystem::path checkpoint_;
  CheckpointManifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  mutable std::set<size_t> used_;
  std::map<std::string, std::vector<Range>> ranges_;
};

}  // namespace fp8train
