#include "model/families/family.h"

#include <fmt/format.h>

#include "base/error.h"

namespace fp8train {

void ModelFamily::set_switches(ModelConfig& config) const {
  static_cast<ModelSwitches&>(config) = switches();
}

bool ModelFamily::has_switches(const ModelConfig& config, bool own) const {
  ModelSwitches written = switches();
  copy_fields(config, own, written);
  if (written.norm == NormKind::rms_norm) {
    written.norm_bias = config.norm_bias;  // RMSNorm has none
  }
  return static_cast<const ModelSwitches&>(config) == written;
}

std::vector<HfPiece> block_pieces(const std::vector<BlockTensor>& tensors, std::string_view blocks,
                                  const ParameterName& parameter) {
  std::vector<HfPiece> pieces;
  for (const BlockTensor& tensor : tensors) {
    if (tensor.module == parameter.module) {
      pieces.push_back(
          {.name = fmt::format("{}.{}.{}.{}", blocks, parameter.block, tensor.hf, parameter.leaf),
           .begin = tensor.begin,
           .rows = tensor.rows,
           .transposed = false,
           .gguf = fmt::format("blk.{}.{}.{}", parameter.block, tensor.gguf, parameter.leaf),
           .rope_heads = tensor.rope_heads});
    }
  }
  check(!pieces.empty(), "unknown parameter name");
  return pieces;
}

const std::vector<const ModelFamily*>& families() {
  static const std::vector<const ModelFamily*> kFamilies = {
      &llama_family(), &mistral_family(), &qwen2_family(),     &qwen3_family(),
      &gpt2_family(),  &mixtral_family(), &qwen3_moe_family(), &dots1_family(),
  };
  return kFamilies;
}

const ModelFamily* default_family() {
  return families().front();
}

const ModelFamily* find_family(std::string_view name) {
  for (const ModelFamily* family : families()) {
    if (family->name() == name) {
      return family;
    }
  }
  return nullptr;
}

}  // namespace fp8train
