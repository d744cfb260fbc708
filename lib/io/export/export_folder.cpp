#include "io/export/export_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "data/chat/chat_encoder.h"
#include "data/folder_files.h"
#include "data/tokenizers/registry.h"
#include "io/checkpoint/checkpoint.h"
#include "io/hf_config.h"
#include "io/model_source.h"
#include "io/safetensors/safetensors.h"
#include "model/families/family.h"
#include "numeric/dtype.h"
#include "tensor/tensor_format.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

ConfigObject fine_grained(const std::vector<std::string>& plain_modules) {
  constexpr int64_t kBlock = 128;
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {kBlock, kBlock}},
          {"modules_to_not_convert", plain_modules}};
}

/// How compressed-tensors (neuralmagic/compressed-tensors: src/compressed_tensors/quantization)
/// describes weights. Activations are cast by token while the model runs, or stay as they are.
struct CompressedWeights {
  DType code;
  ScaleBlock block;
  DType scales;  ///< in which they are held
  std::string_view format, type, strategy, scale_dtype = {};
};
constexpr CompressedWeights kCompressed[] = {
    {DType::e4m3, per::tensor, DType::f32, "float-quantized", "float", "tensor"},
    {DType::e4m3, per::row, DType::f32, "float-quantized", "float", "channel"},
    {DType::i8, per::tensor, DType::f32, "int-quantized", "int", "tensor"},
    {DType::i8, per::row, DType::f32, "int-quantized", "int", "channel"},
    {DType::e2m1, per::block_1x16, DType::e4m3, "nvfp4-pack-quantized", "float", "tensor_group",
     "torch.float8_e4m3fn"},
    {DType::e2m1, per::block_1x32, DType::e8m0, "mxfp4-pack-quantized", "float", "group",
     "torch.uint8"},
};

ConfigObject arguments_of(const CompressedWeights& weights, std::string_view strategy,
                          bool dynamic) {
  ConfigObject values = {
      {"num_bits", facts_of(weights.code).bits}, {"type", weights.type}, {"strategy", strategy}};
  if (!weights.scale_dtype.empty()) {
    set(values, "group_size", weights.block.columns);
    set(values, "scale_dtype", weights.scale_dtype);
  }
  set(values, "symmetric", true);
  set(values, "dynamic", dynamic);
  return values;
}

ConfigObject compressed_tensors(const CompressedWeights& weights,
                                const std::vector<std::string>& plain_modules) {
  ConfigObject inputs;  // null where activations stay as they are
  if (weights.scale_dtype.empty()) {
    inputs = arguments_of(weights, "token", true);
  }
  const ConfigObject group = {{"targets", Json::array({"Linear"})},
                              {"weights", arguments_of(weights, weights.strategy, false)},
                              {"input_activations", inputs},
                              {"output_activations", nullptr},
                              {"format", weights.format}};
  return {{"quant_method", "compressed-tensors"},
          {"format", weights.format},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", plain_modules},
          {"kv_cache_scheme", nullptr}};
}

/// Returns the object for weights in `format`: e4m3 in 128x128 is quant_method "fp8" with
/// weight_block_size (config.json of DeepSeek-V3; transformers:
/// src/transformers/quantizers/quantizer_finegrained_fp8.py), all else is in kCompressed.
/// `plain_modules` are linear layers that are not cast ("lm_head"). Throws ConfigError for other
/// formats, which no program reads.
ConfigObject quantization_config(const TensorFormat& format,
                                 const std::vector<std::string>& plain_modules) {
  if (format.dtype == DType::e4m3 && format.block == per::block_128x128) {
    return fine_grained(plain_modules);
  }
  for (const CompressedWeights& weights : kCompressed) {
    if (weights.code == format.dtype && weights.block == format.block.as_stored() &&
        weights.scales == dtype_of(format.scale_type)) {
      return compressed_tensors(weights, plain_modules);
    }
  }
  throw ConfigError(fmt::format(
      "a folder with weights in {}: no program reads one; take e4m3 with granularity 128x128, "
      "tensor or row, int8 with tensor or row, or e2m1 (single .safetensors files may have all "
      "formats)",
      describe(format)));
}

namespace fs = std::filesystem;

/// Copies the tokenizer, and the files that belong to it and to the model.
void copy_companions(const fs::path& from, const fs::path& to, ExportReport& report) {
  std::vector<std::string> names(tokenizers::tokenizer_file_names().begin(),
                                 tokenizers::tokenizer_file_names().end());
  std::erase_if(names, [&](const auto& name) { return !has_file(from / name); });
  for (const FolderPart part : {FolderPart::tokenizer, FolderPart::model}) {
    for (std::string& name : names_of_part(from, part)) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    }
  }
  for (const std::string& name : names) {
    create_folder((to / name).parent_path());
    write_file_atomically(to / name,
                          read_text_file(from / name, std::numeric_limits<size_t>::max()));
  }
  report.copied = std::move(names);
  if (const std::string note = note_left_out(from); !note.empty() && !is_checkpoint(from)) {
    report.notes.push_back(note);
  }
}

/// Programs read codes of 4 bits in whole blocks: weights with other rows stay as they are.
void leave_partial_blocks(const ModelSource& model, FileQuantization& how, ExportReport& report) {
  const int64_t width = how.format.block.columns;
  std::vector<std::string> left;
  for (const ModelTensor& tensor : model.tensors) {
    if (how.format.dtype == DType::e2m1 && tensor.is_linear && tensor.shape.back() % width != 0 &&
        is_cast(*model.source.find(tensor.piece.name), how)) {
      left.push_back(tensor.piece.name);
    }
  }
  if (left.empty()) return;
  if (std::ssize(left) == std::ranges::count_if(model.tensors, &ModelTensor::is_linear)) {
    throw ConfigError(fmt::format("{}: no weight has rows of a multiple of {} values",
                                  model.folder.string(), width));
  }
  report.notes.push_back(
      fmt::format("{} weights are not cast, since their rows are no multiple of "
                  "{}: {}{}",
                  left.size(), width, left.front(), left.size() > 1 ? ", ..." : ""));
  how.exclude.insert(how.exclude.end(), left.begin(), left.end());
}

/// Without a cast all tensors are "others".
FileQuantization conversion(const ModelSource& model, const ExportOptions& options,
                            ExportReport& report) {
  if (!options.quantization) {
    FileQuantization how;
    how.exclude = {"*"};
    how.others = options.dtype;
    return how;
  }
  FileQuantization how = *options.quantization;
  check_quantization(how.format);
  how.others = options.dtype;
  how.vectors = false;
  how.dequantize = false;
  std::set<std::string> linears;
  for (const ModelTensor& tensor : model.tensors) {
    if (tensor.piece.transposed) {
      throw CheckpointError(fmt::format(
          "{0}: this model stores {1} transposed, and no program reads codes of such a layer.\n"
          "For 8 bits in llama.cpp: fp8train export {0} --to gguf --dtype q8_0 --out FILE\n"
          "To cast a file as it is: fp8train quantize {0}/FILE.safetensors --out FILE",
          model.folder.string(), tensor.piece.name));
    }
    if (tensor.is_linear) {
      linears.insert(tensor.piece.name);
    }
  }
  for (const std::string& name : model.source.names()) {
    if (!linears.contains(name)) {
      how.exclude.push_back(name);
    }
  }
  leave_partial_blocks(model, how, report);
  return how;
}

/// The linear layers of which the weight is not cast. A tied head is one too, and so are routers.
std::vector<std::string> plain_modules(const ModelSource& model, const FileQuantization& how) {
  const auto module_of = [](const std::string& weight) {
    return weight.substr(0, weight.size() - std::string_view(".weight").size());
  };
  std::vector<std::string> modules = {module_of(hf_head_weight(model.config.model))};
  for (const ModelTensor& tensor : model.tensors) {
    const std::string& name = tensor.piece.name;
    const bool is_matrix = tensor.is_linear || tensor.parameter.ends_with(".router.weight");
    if (is_matrix && !is_cast(*model.source.find(name), how)) {
      modules.push_back(module_of(name));
    }
  }
  return modules;
}

/// transformers takes the number of rows over the number of scales for the height of a block, so
/// that it reads blocks wrongly where the last one is smaller
/// (src/transformers/integrations/finegrained_fp8.py, Fp8Dequantize).
void warn_of_partial_blocks(const ModelSource& model, const FileQuantization& how) {
  const ScaleBlock block = how.format.block;
  for (const ModelTensor& tensor : model.tensors) {
    if (block != per::block_128x128 || !is_cast(*model.source.find(tensor.piece.name), how)) {
      continue;
    }
    for (const int64_t extent : tensor.shape) {
      if (extent > block.rows && extent % block.rows != 0) {
        log_warning(fmt::format(
            "{} has {} rows or columns, not a multiple of {}: transformers does not read such "
            "blocks; fp8-tensor has a scale for the whole weight",
            tensor.piece.name, extent, block.rows));
        return;
      }
    }
  }
}

DType dtype_of(const ModelSource& model) {
  const SafetensorsEntry& first = *model.source.find(model.tensors.front().piece.name);
  const DType dtype = first.type.dtype.value_or(DType::f32);
  return dtype == DType::f64 ? DType::f32 : dtype;  // F64 is read as fp32
}

/// The token that ends answers of the tokenizer's chat template; -1 where there is no template that
/// is known.
int64_t end_of_answer(const fs::path& folder) {
  try {
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(folder);
    return ChatEncoder(*tokenizer).end_of_answer();
  } catch (const Error&) {
    return -1;
  }
}

/// Other programs stop where generation_config.json says, which a base model's does not say of the
/// answers that it has learned since.
void add_end_of_answer(const ModelSource& model, const fs::path& from, const fs::path& to,
                       ExportReport& report) {
  const int64_t end = end_of_answer(from);
  const fs::path file = to / kGenerationFile;
  Json config = Json::object();
  if (fs::exists(file)) config = Json::parse(read_text_file(file, 1U << 20), nullptr, false);
  if (end < 0 || !config.is_object()) return;
  Json ids = Json::array();
  if (const auto given = config.find("eos_token_id"); given != config.end() && !given->is_null()) {
    ids = given->is_array() ? *given : Json::array({*given});
  } else if (!model.config.eos_token_ids.empty()) {
    ids = model.config.eos_token_ids;
  } else if (model.config.model.eos_token_id >= 0) {
    ids.push_back(model.config.model.eos_token_id);
  }
  if (std::find(ids.begin(), ids.end(), end) != ids.end()) return;
  ids.insert(ids.begin(), end);
  config["eos_token_id"] = ids;
  write_file_atomically(file, config.dump(2) + "\n");
  report.notes.push_back(
      fmt::format("{}: eos_token_id has {} too, with which the chat template ends an answer",
                  file.string(), end));
}

}  // namespace

bool holds_model_files(const fs::path& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name == kAdapterConfig ||
        (name.starts_with("model") && name.find(".safetensors") != std::string::npos)) {
      return true;
    }
  }
  return false;
}

ExportReport export_folder(const fs::path& from, const fs::path& to, const ExportOptions& options) {
  const ModelSource model = open_model_source(from);
  ExportReport report;
  const FileQuantization how = conversion(model, options, report);
  ConfigObject quantization;
  std::map<std::string, std::string> metadata;
  if (options.quantization) {
    quantization = quantization_config(how.format, plain_modules(model, how));
    warn_of_partial_blocks(model, how);
    metadata["quantization"] = quantization_note(how);
  }
  const std::string config =
      write_hf_config(model.config.model, options.dtype.value_or(dtype_of(model)),
                      {.original = model.config.fields, .quantization = quantization});
  create_folder(to);
  for (const auto* notes : {&model.config.notes, &model.config.copying_notes}) {
    for (const std::string& note : *notes) {
      report.notes.push_back(fmt::format("{}: {}", (from / "config.json").string(), note));
    }
  }
  const ModelConfig& exported = model.config.model;
  if (const std::string note = exported.family->transformers_note(exported); !note.empty()) {
    report.notes.push_back(note);
  }
  copy_companions(from, to, report);
  add_end_of_answer(model, from, to, report);
  ShardedWriter writer(to, quantized_entries(model.source, how), metadata, options.max_shard_bytes);
  report.quantization = quantize_tensors(
      model.source, how,
      [&](const std::string& name, const void* data) { writer.write(name, data); });
  if (const auto lines = report.quantization.not_finite(); !lines.empty()) {
    throw CheckpointError(fmt::format("{}: {}", from.string(), fmt::join(lines, "; ")));
  }
  writer.commit();
  write_file_atomically(to / "config.json", config);
  report.tensors = model.source.names().size();
  report.bytes = writer.bytes();
  return report;
}

}  // namespace fp8train
