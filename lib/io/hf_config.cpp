#include "io/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "io/safetensors/tensor_source.h"
#include "io/safetensors/weight_codes.h"
#include "io/strict_json.h"
#include "model/hf_names.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

HfConfig read_document(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    throw CheckpointError(where + ": not a JSON object");
  }
  HfConfig config = read_hf_fields(ConfigFields(json, where));
  if (const auto codes = read_weight_codes(json, where)) {
    config.training_notes.push_back(fmt::format(
        "the weights are codes with scales (quantization_config: {}): training reads the values "
        "that they stand for, and adapters can leave them as they are (model.lora.base)",
        codes->method));
    config.fields.erase("quantization_config");
  }
  return config;
}

/// Whether the folder's weights hold a head that differs from the embedding. Weights that cannot be
/// read are reported by those who load them.
bool has_own_head(const ModelConfig& model, const std::filesystem::path& folder) {
  try {
    const TensorSource source(folder);
    const SafetensorsEntry* head = source.find(hf_head_weight(model));
    const SafetensorsEntry* embedding =
        source.find(hf_pieces(model, "embedding.weight").front().name);
    return head != nullptr && embedding != nullptr && !source.equal(*head, *embedding);
  } catch (const CheckpointError&) {
    return false;
  }
}

/// Whether the fields describe this model.
bool describe(const ConfigObject& fields, const ModelConfig& config) {
  try {
    const ModelConfig read = read_hf_fields({fields, "config.json"}).model;
    return same_computation(completed(read), completed(config));
  } catch (const Error&) {
    return false;
  }
}

/// Sets the entry of another config.json of the model, if the model stays the same.
void keep(const std::string& key, const Json& value, const ModelConfig& config,
          ConfigObject& fields) {
  for (const char* rewritten :
       {"architectures", "model_type", "dtype", "torch_dtype", "auto_map"}) {
    if (key == rewritten) return;
  }
  ConfigObject changed = fields;
  set(changed, key, value);
  if (describe(changed, config)) {
    fields = std::move(changed);
  }
}

namespace fs = std::filesystem;

/// The names in a folder, sorted; empty where it cannot be listed.
std::vector<std::string> names_in(const fs::path& folder) {
  constexpr size_t kMaxNames = 100'000;
  std::vector<std::string> names;
  std::error_code unseen;
  for (fs::directory_iterator entry(folder, unseen), end; entry != end && names.size() < kMaxNames;
       entry.increment(unseen)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The snapshot that refs/main names, or the only one; empty where nobody can tell.
std::string snapshot_of(const fs::path& folder, const std::vector<std::string>& snapshots) {
  std::string revision;
  std::ifstream(folder / "refs" / "main") >> revision;
  if (std::find(snapshots.begin(), snapshots.end(), revision) != snapshots.end()) {
    return revision;
  }
  return snapshots.size() == 1 ? snapshots.front() : "";
}

std::string describe_cache(const fs::path& folder) {
  const std::vector<std::string> snapshots = names_in(folder / "snapshots");
  const std::string which = snapshot_of(folder, snapshots);
  return fmt::format("it is a folder of the Hub's cache: name {}",
                     which.empty() ? "one of the folders in its snapshots"
                                   : (folder / "snapshots" / which).string());
}

}  // namespace

HfConfig parse_hf_config(std::string_view json, const std::string& where) {
  return read_document(detail::parse_strict_json(json, where), where);
}

HfConfig read_hf_config(const std::filesystem::path& folder) {
  const std::string path = (folder / "config.json").string();
  HfConfig config = read_document(detail::read_strict_json(path), path);
  if (config.model.tie_word_embeddings && has_own_head(config.model, folder)) {
    config.model.tie_word_embeddings = false;
    config.notes.push_back(fmt::format(
        "'tie_word_embeddings' is true, but {} has other values than the embedding: the flag is "
        "read as false",
        hf_head_weight(config.model)));
  }
  return config;
}

std::string write_hf_config(const ModelConfig& config, DType dtype, const HfConfigExtras& extras) {
  ConfigObject fields = write_hf_fields(config, dtype);
  for (const auto& [key, value] : extras.original.items()) {
    keep(key, value, config, fields);
  }
  if (!extras.quantization.empty()) {
    set(fields, "quantization_config", extras.quantization);
  }
  return fields.dump(2) + "\n";
}

std::vector<int64_t> read_end_tokens(const std::filesystem::path& folder, const HfConfig& config) {
  std::vector<int64_t> ids;
  const std::filesystem::path path = folder / kGenerationFile;
  if (has_file(path)) {
    const Json document = detail::read_strict_json(path.string());
    const Json given = document.is_object() ? document.value("eos_token_id", Json()) : Json();
    for (const Json& id : given.is_array() ? given : Json::array({given})) {
      if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
    }
  }
  for (const int64_t id : config.eos_token_ids) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

std::string describe_other_folder(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  const auto has = [&](const char* name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  const auto first_with = [&](const std::vector<std::string>& ends) -> std::string {
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(ends.begin(), ends.end(),
                         [&](const std::string& end) { return name.ends_with(end); });
    });
    return found == names.end() ? "" : *found;
  };
  if (has("snapshots") && (has("blobs") || has("refs"))) {
    return describe_cache(folder);
  }
  if (has("adapter_config.json")) {
    return "it holds an adapter and not a whole model: train it on with model.lora.from, or copy "
           "the config.json of its base model into it to read both as one model";
  }
  const std::string weights = first_with({".safetensors"});
  if (weights.find("-of-") != std::string::npos) {
    return fmt::format(
        "it holds {}, but not model.safetensors.index.json, which says what the "
        "other files are: download the folder again",
        weights);
  }
  if (!weights.empty() && !has("model.safetensors")) {
    return fmt::format(
        "it holds {}: weights in the form of transformers are called "
        "model.safetensors, so rename the file if its tensors have those names",
        weights);
  }
  if (const std::string other =
          first_with({".gguf", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5"});
      !other.empty() && !has("model.safetensors")) {
    return fmt::format(
        "it holds {}: weights in other formats than safetensors are not read "
        "(unpickling .bin and .pt runs code); convert them with transformers' "
        "save_pretrained",
        other);
  }
  return "";
}

}  // namespace fp8train
