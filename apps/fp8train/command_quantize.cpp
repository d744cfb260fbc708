// fp8train quantize: the matrices of a safetensors file, or of a model folder, in FP8, INT8 or FP4.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/names.h"
#include "base/screen.h"
#include "base/text.h"
#include "checkpoint_model.h"
#include "choices.h"
#include "commands.h"
#include "io/export/export_folder.h"
#include "io/export/quantize_file.h"
#include "numeric/with_type.h"
#include "ops/cast/block_formats.h"
#include "output_path.h"

namespace fp8train {
namespace {

struct QuantizeOptions {
  std::string in, out;
  std::string format = "e4m3";
  std::string granularity;  ///< empty: tensor, or 1x16 for e2m1
  std::string scale;
  std::string rounding = std::string(name_in(kRoundings, Rounding::nearest_even));
  uint64_t seed = 0;
  std::vector<std::string> include, exclude;
  bool dequantize = false;
  bool vectors = false;
  bool overwrite = false;
  bool json = false;
};

const Choices<DType> kElements = choices_of(CodeTypes::kTypes);
const Choices<ScaleBlock> kBlocks = choices_of(quantization_blocks());

/// The types that the scales of some block have.
std::set<ScaleType> scale_types() {
  std::set<ScaleType> types;
  for (const ops::BlockFormat& line : ops::block_formats()) {
    types.insert(line.scales.begin(), line.scales.end());
  }
  return types;
}
const Choices<ScaleType> kScales = choices_of(scale_types());
const Choices<Rounding> kRoundingChoices = choices_of(kRoundings);

/// The types of scales, those of the first blocks without the names of these blocks.
std::string scale_help() {
  std::vector<std::pair<std::span<const ScaleType>, std::vector<std::string>>> groups;
  for (const ops::BlockFormat& line : ops::block_formats()) {
    const auto alike = std::ranges::find_if(
        groups, [&](const auto& group) { return std::ranges::equal(group.first, line.scales); });
    std::vector<std::string>& blocks =
        alike == groups.end() ? groups.emplace_back(line.scales, std::vector<std::string>{}).second
                              : alike->second;
    const std::string name = name_of(line.block);
    if (std::ranges::find(blocks, name) == blocks.end()) blocks.push_back(name);
  }
  std::string text;
  for (const auto& [scales, blocks] : groups) {
    text += text.empty()
                ? names_of(choices_of(scales))
                : fmt::format("; {} for {}", names_of(choices_of(scales)), alternatives(blocks));
  }
  return text + " (default: the first)";
}

TensorFormat format_of(const QuantizeOptions& options) {
  TensorFormat format;
  format.policy = ScalePolicy::current;
  format.dtype = choose("--format", options.format, kElements);
  if (options.granularity.empty()) {
    format.block = format.dtype == DType::e2m1 ? per::block_1x16 : per::tensor;
  } else {
    format.block = choose("--granularity", options.granularity, kBlocks);
  }
  format.scale_type = options.scale.empty()
                          ? ops::find_block_format(format.block, format.dtype)->scales.front()
                          : choose("--scale", options.scale, kScales);
  format.rounding = choose("--rounding", options.rounding, kRoundingChoices);
  check_quantization(format);
  return format;
}

FileQuantization request_of(const QuantizeOptions& options) {
  const TensorFormat format = format_of(options);
  if (options.seed != 0 && format.rounding != Rounding::stochastic) {
    throw ConfigError("--seed belongs to --rounding stochastic");
  }
  return {.format = format,
          .seed = options.seed,
          .dequantize = options.dequantize,
          .vectors = options.vectors,
          .include = options.include,
          .exclude = options.exclude};
}

FileQuantizationReport quantize_model(const QuantizeOptions& options, FileQuantization how) {
  if (options.dequantize || options.vectors || options.overwrite) {
    throw ConfigError(fmt::format(
        "{} is a folder: --dequantize, --vectors and --overwrite are for single .safetensors files",
        options.in));
  }
  if (holds_model_files(options.out)) {
    throw ConfigError(options.out + " holds files of a model already; choose another --out");
  }
  ExportReport report = export_folder(find_whole_model(options.in), options.out,
                                      {.dtype = {}, .quantization = std::move(how)});
  for (const std::string& note : report.notes) {
    fmt::print(stderr, "note: {}\n", without_controls(note));
  }
  return std::move(report.quantization);
}

FileQuantizationReport quantize_any(const QuantizeOptions& options, const FileQuantization& how) {
  if (std::filesystem::is_directory(options.in)) {
    return quantize_model(options, how);
  }
  check_output_file(options.out, options.overwrite, "--out");
  return quantize_file(options.in, options.out, how);
}

double percent(uint64_t part, uint64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string snr_text(const CastQuality& quality) {
  const double snr = quality.snr_db();
  return std::isnan(snr) ? "-" : std::isinf(snr) ? "exact" : fmt::format("{:.2f}", snr);
}

void print_report_text(const FileQuantizationReport& report, const FileQuantization& how,
                       const QuantizeOptions& options) {
  std::vector<TableColumn> table = {{"tensor"},      {"shape", 2},    {"amax", 1},
                                    {"saturated %"}, {"underflow %"}, {"SNR dB"}};
  const auto add = [&](const std::string& name, const std::string& shape,
                       const CastQuality& quality) {
    add_row(table,
            {without_controls(name), shape, fmt::format("{:.6g}", quality.amax),
             fmt::format("{:.4f}", percent(quality.statistics.saturated, quality.statistics.count)),
             fmt::format("{:.4f}", percent(quality.statistics.underflow, quality.statistics.count)),
             snr_text(quality)});
  };
  for (const QuantizedEntry& tensor : report.tensors) {
    add(tensor.name, fmt::format("[{}]", fmt::join(tensor.shape, ", ")), tensor.quality);
  }
  const CastQuality total = report.total();
  add("total", counted(std::ssize(report.tensors), "tensor"), total);
  print_fitted("{}", table_text(std::move(table), terminal_columns(stdout)));
  for (const CopiedTensor& tensor : report.copied) {
    print_fitted("copied as it is: {} ({})\n", without_controls(tensor.name), tensor.reason);
  }
  if (total.not_a_number + total.infinite > 0) {
    print_fitted(
        "{} values are NaN and {} infinite: docs/reference/formats.md says what becomes of them\n",
        total.not_a_number, total.infinite);
  }
  print_fitted("{} holds {} as {}{}\n", options.out, options.in, describe(how.format),
               how.dequantize ? ", dequantized" : "");
}

nlohmann::ordered_json json_of(const CastQuality& quality) {
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  return {{"elements", quality.statistics.count},
          {"amax", number(static_cast<double>(quality.amax))},
          {"saturated", quality.statistics.saturated},
          {"underflow", quality.statistics.underflow},
          {"nan", quality.not_a_number},
          {"infinite", quality.infinite},
          {"signal", number(quality.signal)},
          {"noise", number(quality.noise)},
          {"snr_db", number(quality.snr_db())}};
}

void print_report_json(const FileQuantizationReport& report, const FileQuantization& how,
                       const QuantizeOptions& options) {
  nlohmann::ordered_json json = {{"in", options.in},
                                 {"out", options.out},
                                 {"format", describe(how.format)},
                                 {"dequantized", how.dequantize},
                                 {"tensors", nlohmann::ordered_json::array()},
                                 {"copied", nlohmann::ordered_json::array()},
                                 {"total", json_of(report.total())}};
  for (const QuantizedEntry& tensor : report.tensors) {
    nlohmann::ordered_json line = {
        {"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}};
    line.update(json_of(tensor.quality));
    json["tensors"].push_back(line);
  }
  for (const CopiedTensor& tensor : report.copied) {
    json["copied"].push_back(
        {{"name", tensor.name}, {"reason", tensor.reason}, {"not_finite", tensor.not_finite}});
  }
  fmt::print("{}\n", json_text(json, 2));
}

/// On standard error, so that a report as JSON stays whole.
void warn_of(const std::vector<std::string>& lines) {
  constexpr size_t kShown = 10;
  for (size_t i = 0; i < std::min(lines.size(), kShown); ++i) {
    log_warning(lines[i]);
  }
  if (lines.size() > kShown) {
    log_warning(fmt::format("and {} more tensors with values that are NaN or infinite",
                            lines.size() - kShown));
  }
}

}  // namespace

void add_quantize(Arguments command, Action& action) {
  auto options = std::make_shared<QuantizeOptions>();
  command.required_path("input INPUT", options->in,
                        "A .safetensors file, or a model folder: fp32, bf16 and fp16 are cast");
  command.required_path("--out PATH", options->out, "The file or folder to write", PathUse::output);
  command.option("--format", options->format, names_of(kElements));
  command.option("--granularity BLOCK", options->granularity,
                 "What shares a scale: " + names_of(kBlocks) + " (default: tensor; 1x16 for e2m1)");
  command.option("--scale", options->scale, scale_help());
  command.option("--rounding", options->rounding, names_of(kRoundingChoices));
  command.option("--seed", options->seed, "Seed of stochastic rounding");
  command.list("--include PATTERN", options->include,
               "Cast only tensors of this name; * and ? (repeatable)");
  command.list("--exclude PATTERN", options->exclude,
               "Keep tensors of this name as they are (repeatable)");
  command.flag("--vectors", options->vectors, "Cast tensors of one dimension too, as one row");
  command.flag("--dequantize", options->dequantize,
               "Write the values of the codes, in the type of the input");
  command.flag("--overwrite,--force", options->overwrite, "Replace a file that is there");
  command.flag("--json", options->json, "Report as JSON");
  command.run(action, [options] {
    const FileQuantization request = request_of(*options);
    const FileQuantizationReport report = quantize_any(*options, request);
    warn_of(report.not_finite());
    (options->json ? print_report_json : print_report_text)(report, request, *options);
    return 0;
  });
}

}  // namespace fp8train
