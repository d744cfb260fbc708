#pragma once
// Models as the files of karpathy's C programs: GPT-2 for llm.c, Llama for llama2.c. Both have all
// weights of one kind together, layer after layer.

#include <cstdint>
#include <filesystem>

#include "io/model_source.h"
#include "numeric/dtype.h"

namespace fp8train {

/// Returns "llm.c" for a model with learned positions, else "llama2.c".
const char* llmc_program(const ModelSource& model);

/// Writes `to` and returns its bytes.
/// - GPT-2: llm.c's checkpoint (train_gpt2.py, write_model): 256 int32 (magic 20240326, version 3
///   for fp32 or 5 for bf16, context, vocabulary, layers, heads, width, padded vocabulary), then
///   the weights, with the embedding padded with zero rows to a multiple of 128. A bias that the
///   model lacks is zeros. The head must be tied and the MLP 4 times as wide as the model.
/// - Llama: version 0 of llama2.c (export.py, legacy_export; run.c), fp32: 7 int32, the weights
///   (rows of q and k in pairs of neighbours), and the tables of cosines and sines. run.c has a
///   RoPE base of 10000, without scaling, and no biases.
/// Both programs have a norm epsilon of 1e-5.
/// Throws CheckpointError for any other model, ConfigError for a type that the program does not
/// read. Holds one tensor in memory.
uint64_t export_llmc(const ModelSource& model, const std::filesystem::path& to, DType dtype);

}  // namespace fp8train
