// The tensors that a folder seems to have: matrices of experts, values of codes, and weights with
// their adapters.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "io/strict_json.h"
#include "model/hf_names.h"
#include "model/model_config.h"

namespace fp8train {

/// The matrices of an expert are neighbours in [experts, rows, columns], gates before values
/// (huggingface/transformers: src/transformers/conversion_mapping.py).
void TensorSource::split_experts() {
  constexpr std::string_view kGateUp = ".experts.gate_up_proj", kDown = ".experts.down_proj";
  std::map<std::string, TensorLocation> matrices;
  for (const auto& [name, location] : locations_) {
    const SafetensorsEntry& all = location.entry;
    const bool two = name.ends_with(kGateUp);
    if ((!two && !name.ends_with(kDown)) || all.shape.size() != 3) {
      matrices.emplace(name, location);
      continue;
    }
    const int64_t experts = all.shape[0];
    const int64_t rows = two ? all.shape[1] / 2 : all.shape[1];
    if (experts < 1 || experts > ModelLimits::experts || (two && all.shape[1] % 2 != 0)) {
      throw CheckpointError(fmt::format(
          "{}: '{}' has the shape [{}], expected that of 1 to {} experts{}", path_.string(), name,
          fmt::join(all.shape, ", "), ModelLimits::experts, two ? " with gates and values" : ""));
    }
    const std::string prefix = name.substr(0, name.rfind('.'));
    TensorLocation matrix = location;
    matrix.entry.shape = {rows, all.shape[2]};
    const uint64_t bytes = all.bytes() / static_cast<uint64_t>(experts * (two ? 2 : 1));
    for (int64_t i = 0; i < experts * (two ? 2 : 1); ++i) {
      const char* const kind = !two ? "down_proj" : i % 2 == 0 ? "gate_proj" : "up_proj";
      matrix.entry.name = fmt::format("{}.{}.{}.weight", prefix, two ? i / 2 : i, kind);
      matrix.entry.end = matrix.entry.begin + bytes;
      fused_[matrix.entry.name] = name;
      if (!matrices.emplace(matrix.entry.name, matrix).second) {
        throw CheckpointError(fmt::format("{}: '{}' is there twice, also in '{}'", path_.string(),
                                          matrix.entry.name, name));
      }
      matrix.entry.begin = matrix.entry.end;
    }
  }
  locations_ = std::move(matrices);
}

/// A weight that is codes becomes a tensor of fp32 in a file of its own: number files_.size() + its
/// own. Its scales are none.
void TensorSource::decode_weights() {
  const std::filesystem::path config = path_ / "config.json";
  if (!has_file(config)) return;
  const auto how = read_weight_codes(detail::read_strict_json(config.string()), config.string());
  if (!how) return;
  const auto find = [&](const std::string& name) -> const TensorLocation* {
    const auto found = locations_.find(name);
    return found == locations_.end() ? nullptr : &found->second;
  };
  std::map<std::string, TensorLocation> decoded;
  for (const auto& [name, location] : locations_) {
    const bool packed = name.ends_with(".weight_packed");
    if (is_part_of_codes(name) && !packed) continue;
    const std::string weight = packed ? name.substr(0, name.rfind('_')) : name;
    const auto encoded = find_encoded_weight(weight, *how, find, path_.string());
    if (!encoded) {
      decoded.emplace(name, location);
      continue;
    }
    SafetensorsEntry entry =
        safetensors_entry(weight, DType::f32, {encoded->rows, encoded->columns});
    entry.begin = encoded->codes.entry.begin;
    entry.end += entry.begin;
    decoded.emplace(weight, TensorLocation{files_.size() + encoded_.size(), std::move(entry)});
    encoded_.push_back(*encoded);
  }
  locations_ = std::move(decoded);
}

void TensorSource::add_adapters(const std::filesystem::path& folder) {
  const std::string base = read_adapter_folder(folder).base;
  if (base.empty() || !std::filesystem::is_directory(base) || holds_adapters(base)) {
    throw CheckpointError(
        base.empty() ? fmt::format("{}: the adapters are of a model that is in no folder, but was "
                                   "drawn when their run began; train adapters of model.from",
                                   folder.string())
                     : fmt::format("{}: the adapters are of '{}', which is no folder of a model; "
                                   "correct base_model_name_or_path in {}",
                                   folder.string(), base, kAdapterConfig));
  }
  *this = TensorSource(base);
  const auto layer = hf_pieces(read_hf_config(path_).model, "layers.0.attention.qkv.weight");
  adapters_ = std::make_shared<const AdapterWeights>(folder, layer.front().transposed);
  for (const std::string& weight : adapters_->weights()) {
    const SafetensorsEntry* const found = find(weight);
    if (found == nullptr || found->shape.size() != 2) {
      throw CheckpointError(fmt::format("{}: {} has no weight '{}', which is adapted",
                                        folder.string(), base, weight));
    }
    adapters_->check_shape(weight, found->shape[0], found->shape[1]);
    TensorLocation& location = locations_.at(found->name);
    SafetensorsEntry entry = safetensors_entry(found->name, DType::f32, found->shape);
    entry.begin = found->begin;
    entry.end += entry.begin;
    adapted_.push_back({weight, location});
    location = {kAdapted + adapted_.size() - 1, std::move(entry)};
  }
}

}  // namespace fp8train
