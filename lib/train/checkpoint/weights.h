#pragma once
// Copies the weights of a decoder to and from Hugging Face tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "engine/engine.h"
#include "io/safetensors/safetensors.h"
#include "io/safetensors/tensor_source.h"
#include "model/decoder.h"

namespace fp8train {

/// How an embedding or head that has fewer rows than the model has tokens is loaded. append: each
/// row that is missing is the mean of the others, in fp32, as
/// resize_token_embeddings(mean_resizing=True) of transformers initializes it
/// (src/transformers/modeling_utils.py), without the noise of 1e-9 times the covariance that it
/// adds.
enum class MissingTokens : uint8_t { refuse, append };

/// Sets every parameter from its pieces. Throws CheckpointError naming the tensor that is missing,
/// has another shape or is not finite. A tied head is not asked for. Warns of unread tensors.
void load_weights(Device& device, Decoder& model, const TensorSource& source,
                  MissingTokens missing = MissingTokens::refuse);

/// Returns the names of tensors of `source` that the model has no parameter for, but for tensors
/// that follow from its configuration: tables of angles, causal masks, a tied head.
std::vector<std::string> unread_tensors(Decoder& model, const TensorSource& source);

/// The fp32 values of all parameters, copied to host memory.
struct WeightsCopy {
  /// The values of one parameter.
  struct Parameter {
    std::string name;
    int64_t columns = 0;  ///< 1 for vectors
    bool is_vector = false;
    HostMemory values;
  };
  std::vector<Parameter> parameters;
};

/// Copies the weights; memory of an earlier copy is used again. Collective where ranks have parts
/// of them; `wanted` false: this rank only takes part. Throws NumericError where a weight is not
/// finite, named as in a Hugging Face folder: such a checkpoint could not be loaded.
void copy_weights(Engine& engine, bool wanted, WeightsCopy& into);

/// Returns the Hugging Face tensors of a copy, in fp32. They point into it, or into `storage` if
/// they are stored transposed.
std::vector<TensorBytes> hf_tensors(const ModelConfig& config, const WeightsCopy& copy,
                                    std::vector<std::vector<float>>& storage);

}  // namespace fp8train
