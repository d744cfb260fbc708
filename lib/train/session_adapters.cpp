// The adapters of a session.

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "io/safetensors/adapters.h"
#include "io/safetensors/tensor_source.h"
#include "model/linear_sites.h"
#include "model/lora.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// The formats of codes in which frozen weights can be stored.
const std::vector<TensorFormat>& code_formats() {
  static const std::vector<TensorFormat> kFormats = {
      parse_format("e4m3 row"), parse_format("int8 row"), parse_format("e4m3 128x128")};
  return kFormats;
}

/// How the folder stores the weights of linear layers, if all can stay so.
TensorFormat format_of_folder(const std::string& folder, const ModelConfig& model,
                              DType activation) {
  const TensorSource source(folder);
  std::vector<std::string> names;
  for_each_linear(model, [&](const LinearSite& site) {
    for (const HfPiece& piece : hf_pieces(model, site.name + ".weight")) {
      if (site.block >= 0) {
        names.push_back(piece.name);
      }
    }
  });
  const auto all_are = [&](const auto& is_so) { return std::ranges::all_of(names, is_so); };
  for (const TensorFormat& format : code_formats()) {
    if (all_are([&](const std::string& name) {
          const EncodedWeight* const codes = source.find_codes(name);
          return codes != nullptr && are_in(*codes, format);
        })) {
      return format;
    }
  }
  const bool are_halves = all_are([&](const std::string& name) {
    const SafetensorsEntry* const entry = source.find(name);
    return entry != nullptr && (entry->type.dtype != DType::f32 || source.find_codes(name));
  });
  return plain(activation == DType::bf16 && are_halves ? DType::bf16 : DType::f32);
}

TensorFormat base_format(const Settings& settings, const ModelConfig& model) {
  const std::string& base = settings.model.lora_base;
  const DType activation = resolve_plan(settings.precision).activation;
  if (base == "as_file") {
    return settings.model.from.empty() ? plain(activation == DType::bf16 ? DType::bf16 : DType::f32)
                                       : format_of_folder(settings.model.from, model, activation);
  }
  TensorFormat format = keyed<ConfigError>("model.lora.base", [&] { return parse_format(base); });
  const bool codes = std::ranges::find(code_formats(), format) != code_formats().end();
  if (!codes && format != TensorFormat{} && format != plain(DType::bf16)) {
    throw KeyError("model.lora.base",
                   fmt::format(": '{}' is no format of frozen weights; expected as_file, fp32, "
                               "bf16, 'e4m3 128x128', 'e4m3 row' or 'int8 row'",
                               base));
  }
  return format;
}

}  // namespace

ModelConfig with_adapters(Session& session, ModelConfig model) {
  const Settings& settings = session.settings;
  const std::string& from = settings.model.lora_from;
  LoraSettings& lora = model.lora;
  lora = settings.model.config.lora;
  if (!from.empty()) {
    if (settings.model.from.empty()) {
      throw KeyError("model.lora.from", " has adapters of a trained model; give it as model.from");
    }
    const AdapterFolder folder = read_adapter_folder(from);
    const LoraSettings given = std::exchange(lora, folder.lora);
    if (folder.dropout != 0) {
      session.note(
          FileRemark{fmt::format("{}: lora_dropout {} is not applied: training is without dropout",
                                 from, folder.dropout)},
          SessionNote::Kind::warning_of_training);
    }
    if ((given.is_on() && given.rank != lora.rank) ||
        (given.alpha > 0 && given.alpha != lora.alpha) || !given.targets.empty() ||
        (given.use_rslora && !lora.use_rslora)) {
      throw KeyError("model.lora.from",
                     fmt::format(": {} has adapters of rank {} and alpha {} and decides their "
                                 "layers; remove model.lora.rank, alpha, use_rslora and targets",
                                 from, lora.rank, lora.alpha));
    }
  }
  if (lora.is_on() && !settings.model.from.empty() && holds_adapters(settings.model.from)) {
    throw KeyError(
        "model.from",
        fmt::format(": {} has adapters, and others are to be added; add the first to their base "
                    "with fp8train export --merge, or continue them with model.lora.from",
                    settings.model.from));
  }
  if (lora.is_on() && settings.model.resize_vocabulary > 0) {
    throw KeyError("model.resize_vocabulary",
                   " adds tokens that adapters do not train, and that no checkpoint of them holds; "
                   "export a resized model first");
  }
  if (lora.is_on()) {
    lora.targets = peft_targets(model);
    lora.alpha = lora.alpha == 0 ? static_cast<double>(lora.rank) : lora.alpha;
    lora.base = base_format(settings, model);
  }
  return model;
}

}  // namespace fp8train
