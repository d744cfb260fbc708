// fp8train export: a trained model as a folder for other programs.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint_model.h"
#include "commands.h"
#include "config/scalar.h"
#include "io/checkpoint.h"
#include "io/export_folder.h"

namespace fp8train {
namespace {

struct ExportCommand {
  std::string checkpoint, out;
  std::string to = "hf";
  std::string dtype = "fp32";
  std::string max_shard_size = "5GB";
};

DType parse_dtype(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (text == name_of(dtype)) {
      return dtype;
    }
  }
  throw ConfigError(fmt::format("--dtype {}: expected fp32, bf16 or fp16", text));
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

int export_model(const ExportCommand& request) {
  if (request.to != "hf") {
    throw ConfigError(fmt::format("--to {}: expected hf, a Hugging Face folder", request.to));
  }
  const ExportOptions options = {.dtype = parse_dtype(request.dtype),
                                 .max_shard_bytes = parse_size(request.max_shard_size)};
  if (holds_model_files(request.out)) {
    throw ConfigError(request.out + " holds files of a model already; choose another --out");
  }
  const std::filesystem::path folder = find_model_folder(request.checkpoint);
  if (is_checkpoint(folder)) {
    verify_checkpoint(folder);
  }
  const ExportReport report = export_folder(folder, request.out, options);
  for (const std::string& note : report.notes) {
    fmt::print(stderr, "note: {}/config.json: {}\n", folder.string(), note);
  }
  fmt::print("wrote {}: {} tensors, {} bytes of {}{}{}\n", request.out, report.tensors,
             report.bytes, request.dtype, report.copied.empty() ? "" : "; copied ",
             fmt::join(report.copied, ", "));
  return 0;
}

}  // namespace

void add_export(Arguments command, Action& action) {
  auto request = std::make_shared<ExportCommand>();
  command.required("checkpoint", request->checkpoint,
                   "Run directory, checkpoint or Hugging Face folder");
  command.required("--out", request->out, "Folder to write");
  command.option("--to", request->to,
                 "hf: config.json and safetensors, as transformers reads them");
  command.option("--dtype", request->dtype, "Type of the weights: fp32, bf16 or fp16");
  command.option("--max-shard-size", request->max_shard_size,
                 "Larger models are written as several files: 5GB, 200MB (powers of ten)");
  command.run(action, [request] { return export_model(*request); });
}

}  // namespace fp8train
