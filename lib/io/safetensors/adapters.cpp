#include "io/safetensors/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "io/strict_json.h"
#include "model/families/family.h"
#include "model/lora.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";

/// Options that say nothing about the results, or that the tensors say again.
constexpr std::string_view kNotRead[] = {"auto_mapping",
                                         "base_model_name_or_path",
                                         "fan_in_fan_out",
                                         "inference_mode",
                                         "init_lora_weights",
                                         "layers_pattern",
                                         "layers_to_transform",
                                         "lora_alpha",
                                         "lora_dropout",
                                         "peft_type",
                                         "peft_version",
                                         "qalora_group_size",
                                         "r",
                                         "revision",
                                         "runtime_config",
                                         "target_modules",
                                         "task_type",
                                         "use_rslora",
                                         "loftq_config",
                                         "ensure_weight_tying",
                                         "bias",
                                         "eva_config",
                                         "corda_config"};

/// Whether an option is off: null, false, empty.
bool is_off(const Json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array()) && value.empty());
}

void refuse_options(const Json& config, const std::string& where) {
  const auto refuse = [&](const std::string& key) {
    throw CheckpointError(
        fmt::format("{}: {} is {}: adapters of this kind are not read; train one without it", where,
                    key, config.at(key).dump()));
  };
  if (config.value("peft_type", "LORA") != "LORA") refuse("peft_type");
  if (config.contains("bias") && config.at("bias") != "none") refuse("bias");
  // These change the weights of the base model too.
  if (const auto init = config.find("init_lora_weights");
      init != config.end() && init->is_string() && *init != "gaussian" && *init != "orthogonal" &&
      *init != "eva") {
    refuse("init_lora_weights");
  }
  for (const auto& [key, value] : config.items()) {
    const bool says_nothing =
        std::ranges::find(kNotRead, key) != std::end(kNotRead) || key.ends_with("_core");
    if (!says_nothing && !is_off(value)) refuse(key);
  }
}

/// "model.layers.0.self_attn.q_proj" of "base_model.model.NAME.lora_A.weight".
std::string module_of(const std::string& tensor, std::string_view end) {
  return tensor.substr(kPrefix.size(), tensor.size() - kPrefix.size() - end.size());
}

std::vector<std::string> modules_in(const SafetensorsFile& file) {
  std::vector<std::string> modules;
  for (const SafetensorsEntry& entry : file.header().entries) {
    const bool is_a = entry.name.ends_with(kA);
    if (!entry.name.starts_with(kPrefix) || (!is_a && !entry.name.ends_with(kB))) {
      throw CheckpointError(
          fmt::format("{}: '{}' is no part of an adapter; only lora_A and lora_B "
                      "of linear layers are read",
                      file.path().string(), entry.name));
    }
    if (is_a) modules.push_back(module_of(entry.name, kA));
  }
  return modules;
}

}  // namespace

bool holds_adapters(const fs::path& folder) {
  return has_file(folder / kAdapterFile) && !has_file(folder / "model.safetensors") &&
         !has_file(folder / "model.safetensors.index.json");
}

AdapterFolder read_adapter_folder(const fs::path& folder) {
  const std::string where = (folder / kAdapterConfig).string();
  const Json config = detail::read_strict_json(where);
  if (!config.is_object()) throw CheckpointError(where + ": not a JSON object");
  AdapterFolder found;
  try {
    refuse_options(config, where);
    found.lora.rank = whole_number<int64_t>(config, "r", where);
    found.lora.alpha = config.at("lora_alpha").get<double>();
    found.lora.use_rslora = config.value("use_rslora", false);
    found.dropout = config.value("lora_dropout", 0.0);
    if (const auto base = config.find("base_model_name_or_path");
        base != config.end() && base->is_string()) {
      found.base = base->get<std::string>();
    }
  } catch (const Json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", where, error.what()));
  }
  constexpr int64_t kMaxRank = 1 << 16;
  if (found.lora.rank < 1 || found.lora.rank > kMaxRank || !(found.lora.alpha > 0)) {
    throw CheckpointError(fmt::format("{}: r is {} and lora_alpha {}, expected numbers above 0",
                                      where, found.lora.rank, found.lora.alpha));
  }
  found.lora.targets = modules_in(SafetensorsFile(folder / kAdapterFile));
  return found;
}

std::string adapter_config_text(const ModelConfig& config, const std::string& base) {
  const LoraSettings& lora = config.lora;
  const bool transposed =
      hf_pieces(config, "layers.0.attention.qkv.weight").front().transposed;  // Conv1D
  Json json = {{"peft_type", "LORA"},
               {"task_type", "CAUSAL_LM"},
               {"base_model_name_or_path", base.empty() ? Json() : Json(base)},
               {"r", lora.rank},
               {"lora_alpha", lora.alpha == 0 ? static_cast<double>(lora.rank) : lora.alpha},
               {"use_rslora", lora.use_rslora},
               {"lora_dropout", 0.0},
               {"bias", "none"},
               {"fan_in_fan_out", transposed},
               {"inference_mode", true},
               {"target_modules", peft_targets(config)}};
  if (lora.alpha == static_cast<double>(static_cast<int64_t>(lora.alpha))) {
    json["lora_alpha"] = static_cast<int64_t>(json["lora_alpha"].get<double>());
  }
  return json.dump(2) + "\n";
}

void copy_adapters(const fs::path& from, const fs::path& to) {
  read_adapter_folder(from);
  create_folder(to);
  constexpr size_t kMaxBytes = size_t{1} << 40;
  for (const char* name : {kAdapterFile, kAdapterConfig}) {
    write_file_atomically(to / name, detail::as_checkpoint_error(
                                         [&] { return read_text_file(from / name, kMaxBytes); }));
  }
}

AdapterWeights::AdapterWeights(const fs::path& folder, bool transposed)
    : folder_(read_adapter_folder(folder)), transposed_(transposed), file_(folder / kAdapterFile) {}

std::vector<std::string> AdapterWeights::weights() const {
  std::vector<std::string> names = folder_.lora.targets;
  for (std::string& name : names) {
    name += ".weight";
  }
  return names;
}

const AdapterWeights::Factors& AdapterWeights::factors_of(const std::string& weight) const {
  if (last_.weight == weight) {
    return last_;
  }
  const std::string module = std::string(kPrefix) + weight.substr(0, weight.rfind('.'));
  const SafetensorsEntry* const a = file_.find(module + std::string(kA));
  const SafetensorsEntry* const b = file_.find(module + std::string(kB));
  const int64_t rank = folder_.lora.rank;
  if (a == nullptr || b == nullptr || a->shape.size() != 2 || b->shape.size() != 2 ||
      a->shape[0] != rank || b->shape[1] != rank) {
    throw CheckpointError(
        fmt::format("{}: the adapter of {} has no lora_A [{}, in] and lora_B "
                    "[out, {}]",
                    file_.path().string(), weight, rank, rank));
  }
  last_ = {weight, file_.read_f32(*a), file_.read_f32(*b), a->shape[1], b->shape[0]};
  return last_;
}

void AdapterWeights::check_shape(const std::string& weight, int64_t rows, int64_t columns) const {
  const Factors& factors = factors_of(weight);
  const auto [out, in] =
      transposed_ ? std::pair(factors.in, factors.out) : std::pair(factors.out, factors.in);
  if (rows != out || columns != in) {
    throw CheckpointError(
        fmt::format("{}: the adapter of {} is for a weight [{}, {}], not [{}, {}]",
                    file_.path().string(), weight, out, in, rows, columns));
  }
}

void AdapterWeights::add(const std::string& weight, int64_t columns, int64_t first,
                         std::vector<float>& values) const {
  const Factors& factors = factors_of(weight);
  const int64_t rank = folder_.lora.rank;
  const double scale = folder_.lora.scale();
  const auto count = static_cast<int64_t>(values.size());
  std::vector<double> sums(static_cast<size_t>(columns));
  for (int64_t at = 0; at < count;) {  // a row, or the part of it that is read
    const int64_t row = (first + at) / columns;
    const int64_t begin = (first + at) % columns;
    const int64_t length = std::min(columns - begin, count - at);
    std::fill_n(sums.begin(), length, 0.0);
    for (int64_t r = 0; r < rank; ++r) {
      const float* const a = factors.a.data() + r * factors.in;
      const float* const b = factors.b.data() + r;
      for (int64_t i = 0; i < length; ++i) {
        const double of_a = a[transposed_ ? row : begin + i];
        sums[static_cast<size_t>(i)] += of_a * b[(transposed_ ? begin + i : row) * rank];
      }
    }
    for (int64_t i = 0; i < length; ++i) {
      float& value = values[static_cast<size_t>(at + i)];
      value = static_cast<float>(value + scale * sums[static_cast<size_t>(i)]);
    }
    at += length;
  }
}

}  // namespace fp8train
