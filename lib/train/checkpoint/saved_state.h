#pragma once
// The tensors that ranks have written in parts, whoever wrote them: the optimizer's files of a
// checkpoint, and while one is written the parts of weights. And stored tensors in host memory.
// Synchronous.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "engine/state_tensors.h"
#include "io/checkpoint/checkpoint.h"
#include "io/safetensors/safetensors.h"
#include "tensor/encoded.h"

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

  /// Returns where the part of it with this element begins: file and byte. Elements are those of
  /// the files, which have codes of four bits in pairs.
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

/// A tensor in one of the stored formats, in host memory: the form of a checkpoint's state while it
/// is converted to the formats of another plan. Owns codes and scales; synchronous.
struct HostStored {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  Encoded tensor;  ///< a view of the two above; rounds to nearest

  HostStored(const TensorFormat& format, int64_t count);
  HostStored(HostStored&&) = default;
  HostStored(const HostStored&) = delete;
  HostStored& operator=(const HostStored&) = delete;
};

/// Returns all values in fp32.
std::vector<float> values_of(const HostStored& stored);
/// Returns the values rounded to nearest into the format.
HostStored stored_in(const TensorFormat& format, const std::vector<float>& values);

/// Copies a tensor to the device.
void upload(Device& device, const HostStored& from, const Encoded& to);
/// Decode a tensor of the device, without memory of it.
void decode_to_host(Device& device, const Encoded& tensor, float* to);
std::vector<float> values_on_host(Device& device, const Encoded& tensor);

/// Raises encoded second moments that are 0 where the first moment is not 0, as AdamW does if
/// second moments have scales (ops/optimizer/optimizer.h). `second` has scales, and was made from
/// `values`.
void floor_second_moment(const std::vector<float>& first, const std::vector<float>& values,
                         HostStored& second);

}  // namespace fp8train
