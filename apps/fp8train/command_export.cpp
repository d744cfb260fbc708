// fp8train export: a trained model for other programs: a Hugging Face folder or a GGUF file.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/screen.h"
#include "checkpoint_model.h"
#include "choices.h"
#include "commands.h"
#include "config/fields/scalar.h"
#include "io/export/export_folder.h"
#include "io/export/export_gguf.h"
#include "io/safetensors/adapters.h"
#include "output_path.h"

namespace fp8train {
namespace {

constexpr const char* kShardSize = "5GB";

struct ExportCommand {
  std::string checkpoint, out;
  std::string to = "hf";
  std::string dtype = "fp32";
  std::string max_shard_size = kShardSize;
  bool overwrite = false;
  bool merge = false;
};

enum class ExportTarget : uint8_t { hf, gguf, peft };
const Choices<ExportTarget> kTargets = {
    {"hf", ExportTarget::hf}, {"gguf", ExportTarget::gguf}, {"peft", ExportTarget::peft}};

/// The name of a type of weights in each kind of file; empty: it is not in it.
struct ExportType {
  std::optional<DType> plain;        ///< stored as they are: hf
  std::optional<TensorFormat> cast;  ///< with current scales: hf
  std::optional<GgufType> gguf;
};
ExportType cast_to(const char* format) {
  return {{}, parse_format(format), {}};
}
const Choices<ExportType> kTypes = {
    {"fp32", {DType::f32, {}, GgufType::f32}},    {"bf16", {DType::bf16, {}, GgufType::bf16}},
    {"fp16", {DType::f16, {}, GgufType::f16}},    {"fp8-block", cast_to("e4m3 128x128 current")},
    {"fp8-tensor", cast_to("e4m3 current")},      {"nvfp4", cast_to("e2m1 1x16 current e4m3")},
    {"mxfp4", cast_to("e2m1 1x32 current e8m0")}, {"q8_0", {{}, {}, GgufType::q8_0}}};

[[noreturn]] void refuse_type(const ExportCommand& request, const std::string& types) {
  throw ConfigError(
      fmt::format("--to {} has no --dtype {} (expected {})", request.to, request.dtype, types));
}

std::string names_with(bool (*has)(const ExportType&)) {
  Choices<ExportType> some;
  std::copy_if(kTypes.begin(), kTypes.end(), std::back_inserter(some),
               [&](const auto& choice) { return has(choice.second); });
  return names_of(some);
}

/// "5GB", "200MB", "10KB" or a number of bytes; units are powers of 1000, as in transformers.
uint64_t parse_size(std::string_view text) {
  const size_t end = text.find_last_of("0123456789.") + 1;  // 0 where there is no digit
  const std::optional<double> value = parse_number(text.substr(0, end));
  const std::string_view unit = text.substr(end);
  const std::pair<std::string_view, double> units[] = {{"", 1.0},   {"B", 1.0},  {"KB", 1e3},
                                                       {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  constexpr double kMost = 1e18;
  for (const auto& [name, factor] : units) {
    if (value && unit == name && *value * factor >= 1.0 && *value * factor <= kMost) {
      return static_cast<uint64_t>(*value * factor);
    }
  }
  throw ConfigError(
      fmt::format("--max-shard-size {}: expected bytes with a unit, such as 5GB or 200MB", text));
}

ExportOptions folder_options(const ExportCommand& request, const ExportType& type) {
  ExportOptions options = {.dtype = type.plain,
                           .quantization = {},
                           .max_shard_bytes = parse_size(request.max_shard_size)};
  if (type.cast) {
    options.quantization.emplace().format = *type.cast;
    options.dtype = DType::bf16;  // of the rest (so do the files of DeepSeek-V3)
  } else if (!type.plain) {
    refuse_type(request, names_with([](const ExportType& one) { return one.plain || one.cast; }));
  }
  return options;
}

/// `file` is where names of keys in the notes are from.
void print_notes(const std::vector<std::string>& notes, const std::string& file = "") {
  for (const std::string& note : notes) {
    print_fitted(stderr, "note: {}\n", without_controls(file + note));
  }
}

void print_written(const ExportCommand& request, uint64_t tensors, uint64_t bytes,
                   const std::string& more) {
  print_fitted("wrote {}: {} tensors, {} bytes of {}{}\n", request.out, tensors, bytes,
               request.dtype, more);
}

void write_folder(const ExportCommand& request, const ExportType& type,
                  const std::filesystem::path& folder) {
  const ExportReport report = export_folder(folder, request.out, folder_options(request, type));
  print_notes(report.notes);
  std::string more;
  if (!report.quantization.tensors.empty()) {
    more = fmt::format("; {} of them cast, signal-to-noise ratio {:.2f} dB",
                       report.quantization.tensors.size(), report.quantization.total().snr_db());
  }
  if (!report.copied.empty()) {
    more += fmt::format("; copied {}", fmt::join(report.copied, ", "));
  }
  print_written(request, report.tensors, report.bytes, more);
}

void write_gguf(const ExportCommand& request, const ExportType& type,
                const std::filesystem::path& folder) {
  const ModelSource model = open_model_source(folder);
  print_notes(model.config.notes, folder.string() + "/config.json: ");
  if (!type.gguf) {
    refuse_type(request, names_with([](const ExportType& one) { return one.gguf.has_value(); }));
  }
  const GgufReport report = export_gguf(model, request.out, *type.gguf);
  print_notes(report.notes);
  print_written(request, report.tensors, report.bytes, "");
}

/// Adapters are a model together with their base only.
void check_adapters(const ExportCommand& request, const std::filesystem::path& folder) {
  const bool adapters = holds_adapters(folder);
  if (!adapters && (request.merge || request.to == "peft")) {
    throw ConfigError(fmt::format("{}: {} has no adapters", request.merge ? "--merge" : "--to peft",
                                  folder.string()));
  }
  if (adapters && request.merge == (request.to == "peft")) {
    throw ConfigError(fmt::format(
        "{} holds adapters: --merge adds them to the weights of their base model, and --to peft "
        "writes them alone; give one of the two",
        folder.string()));
  }
}

void write_adapters(const ExportCommand& request, const std::filesystem::path& folder) {
  copy_adapters(folder, request.out);
  const SafetensorsFile file(std::filesystem::path(request.out) / kAdapterFile);
  uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : file.header().entries) {
    bytes += entry.bytes();
  }
  print_written(request, file.header().entries.size(), bytes, "");
}

int export_model(const ExportCommand& request) {
  const ExportTarget target = choose("--to", request.to, kTargets);
  const ExportType type = choose("--dtype", request.dtype, kTypes);
  if (target == ExportTarget::peft && request.dtype != "fp32") {
    throw ConfigError("--to peft writes adapters in fp32; remove --dtype");
  }
  const bool is_folder = target != ExportTarget::gguf;
  if (is_folder && holds_model_files(request.out)) {
    throw ConfigError(request.out + " holds files of a model already; choose another --out");
  }
  if (!is_folder) {
    check_output_file(request.out, request.overwrite, "--out");
  }
  if (is_folder && request.overwrite) {
    throw ConfigError("--overwrite is for --to gguf; a folder is not replaced");
  }
  if (!is_folder && request.max_shard_size != kShardSize) {
    throw ConfigError("--max-shard-size is for --to hf; a GGUF file is one file");
  }
  if (is_folder) {
    folder_options(request, type);  // refuses before checkpoints are read
  }
  const std::filesystem::path folder = find_whole_model(request.checkpoint);
  check_adapters(request, folder);
  if (target == ExportTarget::peft) {
    write_adapters(request, folder);
  } else if (is_folder) {
    write_folder(request, type, folder);
  } else {
    write_gguf(request, type, folder);
  }
  return 0;
}

}  // namespace

void add_export(Arguments command, Action& action) {
  auto request = std::make_shared<ExportCommand>();
  command.required_path("checkpoint,--checkpoint CHECKPOINT", request->checkpoint,
                        "Run directory, checkpoint or Hugging Face folder");
  command.required_path("--out PATH", request->out, "Folder to write; for gguf the file",
                        PathUse::output);
  command.option("--to TARGET", request->to,
                 "hf: config.json and safetensors, as transformers reads them; gguf: a file for "
                 "llama.cpp; peft: the adapters of a run with model.lora, alone");
  command.option("--dtype TYPE", request->dtype,
                 "Type of the weights: fp32, bf16 or fp16; hf: also fp8-block, fp8-tensor, nvfp4, "
                 "mxfp4; gguf: also q8_0");
  command.option("--max-shard-size SIZE", request->max_shard_size,
                 "Larger models are written as several files: 5GB, 200MB (powers of ten)");
  command.flag("--merge", request->merge,
               "Add adapters (model.lora) to the weights of their base model");
  command.flag("--overwrite", request->overwrite, "Replace a GGUF file that is there");
  command.run(action, [request] { return export_model(*request); });
}

}  // namespace fp8train
