#pragma once
// Copies the weights of a decoder to and from Hugging Face tensors.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "engine/engine.h"
#include "engine/state_tensors.h"
#include "io/checkpoint/checkpoint.h"
#include "io/safetensors/tensor_source.h"
#include "model/decoder.h"
#include "model/hf_names.h"

namespace fp8train {

/// How an embedding or head that has fewer rows than the model has tokens is loaded. append: each
/// row that is missing is the mean of the others, in fp32, as
/// resize_token_embeddings(mean_resizing=True) of transformers initializes it
/// (src/transformers/modeling_utils.py), without the noise of 1e-9 times the covariance that it
/// adds.
enum class MissingTokens : uint8_t { refuse, append };

/// The largest magnitudes of whole tensors with one scale of which ranks have parts, by parameter.
using Magnitudes = std::map<std::string, float>;

/// Finds those of the weights in a folder, of which each rank reads its parts. Empty where ranks
/// have whole tensors, and where one of them cannot read its parts: load_weights() says why.
/// Collective.
Magnitudes agreed_magnitudes(Engine& engine, const std::filesystem::path& folder,
                             MissingTokens missing = MissingTokens::refuse);

/// Sets every parameter but adapters from its pieces. A rank reads the whole tensors that
/// `magnitudes` lacks. Throws CheckpointError naming the tensor that
/// is missing, has another shape or is not finite. A tied head is not asked for. Warns of unread
/// tensors.
void load_weights(Device& device, Decoder& model, const TensorSource& source,
                  MissingTokens missing = MissingTokens::refuse, const Magnitudes& magnitudes = {});

/// Returns the names of tensors of `source` that the model has no parameter for, but for tensors
/// that follow from its configuration: tables of angles, causal masks, a tied head.
std::vector<std::string> unread_tensors(Decoder& model, const TensorSource& source);

/// Sets the adapters of a model from the file of a folder of them, read as `reads`. Returns what it
/// has read. Throws CheckpointError as load_weights() does.
TensorSource load_adapters(Device& device, Decoder& model, const std::filesystem::path& folder,
                           SafetensorsFile::Reads reads = SafetensorsFile::Reads::plain);

/// Does the same for the parameters of a store: this rank's parts of them. Warns of nothing.
void load_weights(Device& device, const ModelConfig& config, const ParameterStore& store,
                  const TensorSource& source, MissingTokens missing = MissingTokens::refuse,
                  const Magnitudes& magnitudes = {});

/// This rank's copy of weights in host memory, in fp32. The files of a model folder follow from the
/// model alone, and rank r of n writes file r, r + n, .. of them: at once, if ranks have whole
/// weights. If not, each writes a file of its parts, and model files are made of those of all.
struct WeightsCopy {
  uint64_t max_file_bytes = kMaxModelFileBytes;
  std::vector<std::vector<ModelTensor>> files;  ///< of the model
  size_t rank = 0, ranks = 1;
  bool in_parts = false;                ///< on all ranks or on none
  std::vector<std::string> part_files;  ///< of all ranks
  std::string own_file;                 ///< of parts; empty: this rank writes none
  std::vector<StateTensor> own;         ///< "value.NAME"
  std::vector<HostMemory> memory;       ///< of `own`
};

/// Copies this rank's weights; memory of an earlier copy is used again. Throws NumericError where
/// one is not finite, named as in a Hugging Face folder: such a checkpoint could not be loaded.
void copy_weights(Device& device, const ParameterStore& store, const ModelConfig& config,
                  const Mesh& mesh, WeightsCopy& into);

/// Returns the model's files that this rank writes. Those of parts read the part files of all ranks
/// in `folder`, a piece at a time. The files refer to `copy`.
std::vector<CheckpointFile> model_files(const WeightsCopy& copy,
                                        const std::filesystem::path& folder);
/// Returns the tensors in a checkpoint's own files: adapters without their base.
TensorSource own_weights(const std::filesystem::path& folder);
/// Throws CheckpointError where the model's files differ from this rank's parts, of which they were
/// made.
void check_joined(const std::filesystem::path& folder, const ModelConfig& config,
                  const WeightsCopy& copy);
/// Returns the index of the model's files, or an empty text where there is one file.
std::string model_index(const WeightsCopy& copy);

}  // namespace fp8train
