#pragma once
// "quantization_config" of a config.json: the description of codes and scales that transformers,
// vLLM and compressed-tensors need to read them.

#include <string>
#include <vector>

#include "model/families/config_value.h"
#include "tensor/tensor_format.h"

namespace fp8train {

/// Returns the object for weights in `format`:
/// - e4m3 in 128x128: quant_method "fp8" with weight_block_size (config.json of DeepSeek-V3;
///   transformers: src/transformers/quantizers/quantizer_finegrained_fp8.py);
/// - e4m3 or int8 by tensor or row: quant_method "compressed-tensors" (neuralmagic/
///   compressed-tensors: src/compressed_tensors/quantization/quant_config.py), activations cast by
///   token while the model runs.
/// `plain_modules` are linear layers that are not cast ("lm_head"). Throws ConfigError for other
/// formats, which no program reads.
ConfigObject quantization_config(const TensorFormat& format,
                                 const std::vector<std::string>& plain_modules);

}  // namespace fp8train
