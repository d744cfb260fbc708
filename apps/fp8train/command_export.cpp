// fp8train export: a trained model for other programs: a Hugging Face folder, a GGUF file, or a
// file of llm.c or llama2.c.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint_model.h"
#include "choices.h"
#include "commands.h"
#include "config/scalar.h"
#include "io/checkpoint.h"
#include "io/export_folder.h"
#include "io/export_gguf.h"
#include "io/export_llmc.h"

namespace fp8train {
namespace {

constexpr const char* kShardSize = "5GB";

struct ExportCommand {
  std::string checkpoint, out;
  std::string to = "hf";
  std::string dtype = "fp32";
  std::string max_shard_size = kShardSize;
};

enum class ExportTarget : uint8_t { hf, gguf, llmc };

ExportTarget target_of(const ExportCommand& request) {
  return choose<ExportTarget>(
      "--to", request.to,
      {{"hf", ExportTarget::hf}, {"gguf", ExportTarget::gguf}, {"llmc", ExportTarget::llmc}});
}

enum class ExportType : uint8_t { fp32, bf16, fp16, fp8_block, fp8_tensor, q8_0 };

ExportType type_of(const ExportCommand& request) {
  return choose<ExportType>("--dtype", request.dtype,
                            {{"fp32", ExportType::fp32},
                             {"bf16", ExportType::bf16},
                             {"fp16", ExportType::fp16},
                             {"fp8-block", ExportType::fp8_block},
                             {"fp8-tensor", ExportType::fp8_tensor},
                             {"q8_0", ExportType::q8_0}});
}

/// Of weights that are stored as they are; none for the others.
std::optional<DType> plain_type(ExportType type) {
  switch (type) {
    case ExportType::fp32:
      return DType::f32;
    case ExportType::bf16:
      return DType::bf16;
    case ExportType::fp16:
      return DType::f16;
    default:
      return std::nullopt;
  }
}

[[noreturn]] void refuse_type(const ExportCommand& request, const char* types) {
  throw ConfigError(
      fmt::format("--to {} has no --dtype {} (expected {})", request.to, request.dtype, types));
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

ExportOptions folder_options(const ExportCommand& request, ExportType type) {
  ExportOptions options = {.dtype = plain_type(type),
                           .quantization = {},
                           .max_shard_bytes = parse_size(request.max_shard_size)};
  if (options.dtype) {
    return options;
  }
  if (type == ExportType::q8_0) {
    refuse_type(request, "fp32, bf16, fp16, fp8-block or fp8-tensor");
  }
  FileQuantization how;
  how.format.dtype = DType::e4m3;
  how.format.policy = ScalePolicy::current;
  how.format.block = type == ExportType::fp8_block ? per::block_128x128 : per::tensor;
  options.quantization = std::move(how);
  options.dtype = DType::bf16;  // of the rest (so do the files of DeepSeek-V3)
  return options;
}

GgufType gguf_type(const ExportCommand& request, ExportType type) {
  switch (type) {
    case ExportType::fp32:
      return GgufType::f32;
    case ExportType::bf16:
      return GgufType::bf16;
    case ExportType::fp16:
      return GgufType::f16;
    case ExportType::q8_0:
      return GgufType::q8_0;
    default:
      refuse_type(request, "fp32, bf16, fp16 or q8_0");
  }
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    fmt::print(stderr, "note: {}\n", note);
  }
}

/// Names of keys are those of the folder's config.json.
void print_config_notes(const ModelSource& model) {
  for (const std::string& note : model.config.notes) {
    fmt::print(stderr, "note: {}/config.json: {}\n", model.folder.string(), note);
  }
}

void print_written(const ExportCommand& request, uint64_t tensors, uint64_t bytes,
                   const std::string& more) {
  fmt::print("wrote {}: {} tensors, {} bytes of {}{}\n", request.out, tensors, bytes, request.dtype,
             more);
}

void write_folder(const ExportCommand& request, ExportType type,
                  const std::filesystem::path& folder) {
  const ExportReport report = export_folder(folder, request.out, folder_options(request, type));
  for (const std::string& note : report.notes) {
    fmt::print(stderr, "note: {}/config.json: {}\n", folder.string(), note);
  }
  std::string more;
  if (!report.quantization.tensors.empty()) {
    more = fmt::format("; {} of them cast, {:.2f} dB of signal to noise",
                       report.quantization.tensors.size(), report.quantization.total().snr_db());
  }
  if (!report.copied.empty()) {
    more += fmt::format("; copied {}", fmt::join(report.copied, ", "));
  }
  print_written(request, report.tensors, report.bytes, more);
}

void write_file(const ExportCommand& request, ExportTarget target, ExportType type,
                const std::filesystem::path& folder) {
  const ModelSource model = open_model_source(folder);
  print_config_notes(model);
  if (target == ExportTarget::gguf) {
    const GgufReport report = export_gguf(model, request.out, gguf_type(request, type));
    print_notes(report.notes);
    print_written(request, report.tensors, report.bytes, "");
    return;
  }
  const std::optional<DType> dtype = plain_type(type);
  if (!dtype) {
    refuse_type(request, "fp32, or bf16 for GPT-2");
  }
  const uint64_t bytes = export_llmc(model, request.out, *dtype);
  print_written(request, model.tensors.size(), bytes, fmt::format(", for {}", llmc_program(model)));
}

int export_model(const ExportCommand& request) {
  const ExportTarget target = target_of(request);
  const ExportType type = type_of(request);
  const bool is_folder = target == ExportTarget::hf;
  if (is_folder && holds_model_files(request.out)) {
    throw ConfigError(request.out + " holds files of a model already; choose another --out");
  }
  if (!is_folder && std::filesystem::exists(request.out)) {
    throw ConfigError(fmt::format("{} exists already; --to {} writes one file, name another --out",
                                  request.out, request.to));
  }
  if (!is_folder && request.max_shard_size != kShardSize) {
    throw ConfigError("--max-shard-size is for --to hf; the other targets are one file");
  }
  if (is_folder) {
    folder_options(request, type);  // refuses before checkpoints are read
  }
  const std::filesystem::path folder = find_model_folder(request.checkpoint);
  if (is_checkpoint(folder)) {
    verify_checkpoint(folder);
  }
  if (is_folder) {
    write_folder(request, type, folder);
  } else {
    write_file(request, target, type, folder);
  }
  return 0;
}

}  // namespace

void add_export(Arguments command, Action& action) {
  auto request = std::make_shared<ExportCommand>();
  command.required("checkpoint", request->checkpoint,
                   "Run directory, checkpoint or Hugging Face folder");
  command.required("--out", request->out, "Folder to write; for gguf and llmc the file");
  command.option("--to", request->to,
                 "hf: config.json and safetensors, as transformers reads them; gguf: a file for "
                 "llama.cpp; llmc: a file for llm.c (GPT-2) or llama2.c (Llama)");
  command.option("--dtype", request->dtype,
                 "Type of the weights: fp32, bf16 or fp16; hf: also fp8-block, fp8-tensor; gguf: "
                 "also q8_0");
  command.option("--max-shard-size", request->max_shard_size,
                 "Larger models are written as several files: 5GB, 200MB (powers of ten)");
  command.run(action, [request] { return export_model(*request); });
}

}  // namespace fp8train
