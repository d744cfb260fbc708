#include "train/session_adapters.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/error_prefix.h"
#include "io/safetensors/tensor_source.h"
#include "model/lora.h"

namespace fp8train {
namespace {

/// How the folder stores the weights of linear layers, if a frozen weight can be stored so.
TensorFormat format_of_folder(const std::string& folder, const ModelConfig& model,
                              DType activation) {
  const TensorSource source(folder);
  const std::string first = hf_pieces(model, "layers.0.attention.output.weight").front().name;
  if (const EncodedWeight* const codes = source.find_codes(first); codes != nullptr) {
    if (const auto format = format_of_codes(*codes)) {
      return *format;
    }
  }
  const SafetensorsEntry* const entry = source.find(first);
  const bool is_fp32 =
      entry != nullptr && entry->type.dtype == DType::f32 && source.find_codes(first) == nullptr;
  return plain(activation == DType::bf16 && !is_fp32 ? DType::bf16 : DType::f32);
}

TensorFormat base_format(const Settings& settings, const ModelConfig& model) {
  const std::string& base = settings.model.lora_base;
  const DType activation = resolve_plan(settings.precision).activation;
  if (base == "as_file") {
    return settings.model.from.empty() ? plain(activation == DType::bf16 ? DType::bf16 : DType::f32)
                                       : format_of_folder(settings.model.from, model, activation);
  }
  TensorFormat format =
      with_prefix<ConfigError>("model.lora.base: ", [&] { return parse_format(base); });
  const bool codes =
      format.is_scaled() && (format.block == per::row || format.block == per::block_128x128) &&
      (format.dtype == DType::e4m3 || (format.dtype == DType::i8 && format.block == per::row));
  if (!codes && format != TensorFormat{} && format != plain(DType::bf16)) {
    throw ConfigError(fmt::format(
        "model.lora.base: '{}' is no format of frozen weights; expected as_file, fp32, bf16, 'e4m3 "
        "128x128', 'e4m3 row' or 'int8 row'",
        base));
  }
  return format;
}

}  // namespace

ModelConfig with_adapters(const Settings& settings, ModelConfig model) {
  const std::string& from = settings.model.lora_from;
  LoraSettings& lora = model.lora;
  lora = settings.model.config.lora;
  if (!from.empty()) {
    const LoraSettings given = std::exchange(lora, read_adapter_folder(from).lora);
    if ((given.is_on() && given.rank != lora.rank) ||
        (given.alpha > 0 && given.alpha != lora.alpha)) {
      throw ConfigError(fmt::format(
          "model.lora.from: {} has adapters of rank {} and alpha {}; remove model.lora.rank and "
          "model.lora.alpha, which it decides",
          from, lora.rank, lora.alpha));
    }
  }
  if (lora.is_on() && settings.model.resize_vocabulary > 0) {
    throw ConfigError(
        "model.resize_vocabulary adds tokens that adapters do not train, and that no checkpoint of "
        "them holds; export a resized model first");
  }
  if (lora.is_on()) {
    lora.targets = peft_targets(model);
    lora.base = base_format(settings, model);
  }
  return model;
}

}  // namespace fp8train
