#pragma once
// The tensors of a Hugging Face model folder, whether one model.safetensors or shards with an
// index; of both the single file counts, as in transformers (modeling_utils.py). Weights that are
// codes (weight_codes.h) look like tensors of fp32, and their scales are no tensors. Of the experts
// that transformers 5 has in one tensor ("mlp.experts.gate_up_proj") each matrix is one. A folder
// of adapters looks like its base model, of which each adapted weight has its adapter added in
// fp32. Owns open files; holds no tensor. Not for several threads.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors/adapters.h"
#include "io/safetensors/safetensors.h"
#include "io/safetensors/weight_codes.h"

namespace fp8train {

/// Throws CheckpointError where a folder is a checkpoint that was not written to its end, or whose
/// MANIFEST.json is missing. Folders of other programs have neither mark.
void refuse_incomplete(const std::filesystem::path& folder);

class TensorSource {
 public:
  /// `path`: a folder, or one .safetensors file. Throws CheckpointError when there is none, or when
  /// the index is malformed, names a file outside the folder, or names a tensor that its file does
  /// not hold.
  explicit TensorSource(const std::filesystem::path& path);
  /// Does the same, also for a checkpoint that is being written. File `file` of an index, in order
  /// of names, is read as `reads(file)`.
  TensorSource(const std::filesystem::path& path,
               const std::function<SafetensorsFile::Reads(size_t file)>& reads);
  /// The tensors of one file that is open already.
  explicit TensorSource(SafetensorsFile file);

  /// Returns the names of all tensors, sorted.
  const std::vector<std::string>& names() const { return names_; }

  /// Returns all entries, ordered by the name of their file and their position in it.
  std::vector<const SafetensorsEntry*> entries() const;

  const std::vector<SafetensorsFile>& files() const { return files_; }

  /// Returns the metadata of all files together.
  std::map<std::string, std::string> metadata() const;

  /// Returns null when there is no such tensor. Folders of a base model have their names without
  /// "transformer." or "model."; asked with the prefix, both are found. So are names of which all
  /// begin with what torch.compile and DataParallel put before them ("_orig_mod.", "module."), and
  /// those of Mixtral where experts were in one tensor.
  const SafetensorsEntry* find(const std::string& name) const;

  /// Leaves the tensors that `names` has, each under the name to which it maps the present one.
  /// Throws InternalError for a name that this source does not have, or where two become one.
  void rename(const std::map<std::string, std::string>& names);

  /// Returns a name of this source without what a wrapper of the model has put before all of them.
  std::string unwrapped(const std::string& name) const { return name.substr(wrapper_.size()); }

  /// Returns the name for messages: with that of the tensor of all experts that the file has.
  std::string described(const std::string& name) const;

  /// Whether two tensors of this source have the same shape and the same values. Throws
  /// CheckpointError when reading fails.
  bool equal(const SafetensorsEntry& a, const SafetensorsEntry& b) const;

  /// Returns the bytes of a tensor of this source, as they are. Throws CheckpointError when reading
  /// fails.
  std::vector<char> read_bytes(const SafetensorsEntry& entry) const;

  /// Returns the codes of a weight; null for a tensor that is none.
  const EncodedWeight* find_codes(const std::string& name) const;

  /// Returns the values as fp32. Throws CheckpointError when the tensor is missing, has another
  /// shape than `shape` or another dtype than read_f32 of SafetensorsFile takes, or holds a value
  /// that is not finite.
  std::vector<float> read_f32(const std::string& name, const std::vector<int64_t>& shape) const;
  /// Returns the `count` values from element `first` on in the same way.
  std::vector<float> read_f32(const std::string& name, const std::vector<int64_t>& shape,
                              int64_t first, int64_t count) const;

 private:
  void open_single(SafetensorsFile file);
  void open_index(const std::filesystem::path& index,
                  const std::function<SafetensorsFile::Reads(size_t file)>& reads);
  void decode_weights();
  void split_experts();
  void add_adapters(const std::filesystem::path& folder);
  void list_names();
  void find_wrapper();
  const TensorLocation* location_of(const std::string& name) const;
  /// Values of a tensor whatever they are stored as.
  std::vector<float> values_of(const TensorLocation& location, int64_t first, int64_t count) const;

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorLocation> locations_;
  std::vector<EncodedWeight> encoded_;  ///< weights of the files files_.size() and on
  /// A weight of a file from kAdapted on has an adapter, and is without it of the file `of`.
  static constexpr size_t kAdapted = size_t{1} << 32;
  struct Adapted {
    std::string weight;
    TensorLocation of;
  };
  std::vector<Adapted> adapted_;
  std::shared_ptr<const AdapterWeights> adapters_;
  /// The scales of the weight that was read last.
  mutable std::pair<size_t, std::vector<float>> scales_ = {SIZE_MAX, {}};
  std::vector<std::string> names_;
  std::map<std::string, std::string> fused_;  ///< of matrices of experts, the tensor of them all
  std::string wrapper_;
};

}  // namespace fp8train
