#pragma once
// Models of llama2.c, version 0 (karpathy/llama2.c: export.py legacy_export, run.c): 7 int32, then
// all weights in fp32, every kind of tensor for all layers together. Reading gives Hugging Face
// names, shapes and RoPE layout, in memory.

#include <filesystem>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace fp8train {

/// A tensor with its name in Hugging Face's spelling.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// A model read from a file of llama2.c.
struct Llama2cModel {
  ModelConfig config;
  std::vector<NamedTensor> tensors;
};

/// A kind of tensor that each layer has; `name` is as in "model.layers.0.NAME.weight".
struct Llama2cKind {
  const char* name;
  std::vector<int64_t> shape;
  int64_t rope_heads = 0;
};

/// Returns the kinds of tensors in the order of the file.
std::vector<Llama2cKind> llama2c_kinds(const ModelConfig& config);

/// Reads a model. Throws CheckpointError when the file cannot be read, the header is implausible,
/// the size is not the one that follows from it, or a value is not finite. A negative vocabulary
/// size says that the head is a tensor of its own. Rows of q and k are moved from pairs of
/// neighbours (2j, 2j + 1) to half-split pairs (j, j + head_dim / 2). RMSNorm epsilon 1e-5, RoPE
/// base 10000, BOS 1 and EOS 2 are those of run.c.
Llama2cModel read_llama2c(const std::filesystem::path& path);

/// Writes `model` as a Hugging Face folder; with a `tokenizer` (llama2.c tokNNN.bin, "" for none)
/// its tokenizer.json too. Throws as read_llama2c, write_hf_folder and read_llama2c_tokenizer, and
/// CheckpointError when the vocabularies differ.
void import_llama2c(const std::filesystem::path& model, const std::filesystem::path& tokenizer,
                    const std::filesystem::path& folder);

}  // namespace fp8train
