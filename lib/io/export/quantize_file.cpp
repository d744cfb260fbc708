#include "io/export/quantize_file.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "device/device.h"
#include "io/export/encode_values.h"
#include "io/safetensors/safetensors.h"
#include "numeric/with_type.h"
#include "ops/cast/block_formats.h"

namespace fp8train {
namespace {

bool matches_one(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

/// Why a tensor is copied as it is; empty for one that is cast.
std::string why_copied(const SafetensorsEntry& entry, const FileQuantization& how) {
  if (!entry.type.dtype || !is_float_type(*entry.type.dtype)) {
    return std::string(entry.type.name);
  }
  if (entry.count() == 0) {
    return "no elements";
  }
  if (entry.shape.empty() || (entry.shape.size() == 1 && !how.vectors)) {
    return entry.shape.empty() ? "a scalar" : "one dimension";
  }
  if (!how.include.empty() && !matches_one(entry.name, how.include)) {
    return "not included";
  }
  return matches_one(entry.name, how.exclude) ? "excluded" : "";
}

}  // namespace

std::string quantization_note(const FileQuantization& how) {
  const bool stochastic = how.format.rounding == Rounding::stochastic;
  nlohmann::ordered_json json = {{"format", name_of(how.format.dtype)},
                                 {"granularity", name_of(how.format.block)},
                                 {"scale", name_of(how.format.scale_type)},
                                 {"rounding", stochastic ? "stochastic" : "nearest_even"}};
  if (stochastic) {
    json["seed"] = how.seed;
  }
  json["dequantized"] = how.dequantize;
  return json.dump();
}

namespace {

Shape matrix_shape(const SafetensorsEntry& entry) {
  const int64_t columns = entry.shape.back();
  return {entry.count() / columns, columns};
}

/// Codes of 4 bits are in bytes of two, under a name of their own.
SafetensorsEntry code_entry(const SafetensorsEntry& entry, DType code) {
  if (facts_of(code).bits == 8) {
    return safetensors_entry(entry.name, code, entry.shape);
  }
  std::vector<int64_t> shape = entry.shape;
  shape.back() = static_cast<int64_t>(bytes_of_rows(code, 1, shape.back()));
  return safetensors_entry(entry.name + "_packed", DType::u8, shape);
}

SafetensorsEntry tensor_scale_entry(const SafetensorsEntry& entry) {
  return safetensors_entry(entry.name + "_global_scale", DType::f32, {1});
}

/// tensor: [1]; row: [rows, 1]; blocks: [blocks down, blocks across].
SafetensorsEntry scale_entry(const SafetensorsEntry& entry, const TensorFormat& format) {
  const Shape shape = matrix_shape(entry);
  const ops::ScaleGrid blocks = matrix_blocks(format.block, shape[0], shape[1]);
  const std::vector<int64_t> extents = format.block == per::tensor
                                           ? std::vector<int64_t>{1}
                                           : std::vector<int64_t>{blocks.rows, blocks.columns};
  // Exponents are U8 in the files of MX models, not F8_E8M0.
  const DType scale = dtype_of(format.scale_type);
  return safetensors_entry(entry.name + std::string(scale_suffix(format.block)),
                           scale == DType::e8m0 ? DType::u8 : scale, extents);
}

/// Whether it gets the type of FileQuantization::others. The biases of routers stay as they are,
/// because transformers reads them in fp32 and small steps decide between experts
/// (src/transformers/models/deepseek_v3/modeling_deepseek_v3.py).
bool is_rounded(const SafetensorsEntry& entry) {
  const std::optional<DType> dtype = entry.type.dtype;
  return dtype && (is_float_type(*dtype) || *dtype == DType::f64) &&
         !entry.name.ends_with(".e_score_correction_bias");
}

/// Values of a tensor of floats that are NaN or infinite; of other types nothing is known.
uint64_t not_finite(const SafetensorsEntry& entry, const std::vector<char>& bytes) {
  const auto count = [&]<typename Stored>(Stored exponent) {
    uint64_t found = 0;
    for (size_t at = 0; at + sizeof(Stored) <= bytes.size(); at += sizeof(Stored)) {
      Stored bits = 0;
      std::memcpy(&bits, bytes.data() + at, sizeof(bits));
      found += (bits & exponent) == exponent ? 1 : 0;
    }
    return found;
  };
  if (entry.type.dtype == DType::f32) return count(uint32_t{0x7F800000});
  if (entry.type.dtype == DType::bf16) return count(uint16_t{0x7F80});
  if (entry.type.dtype == DType::f16) return count(uint16_t{0x7C00});
  if (entry.type.dtype == DType::f64) return count(uint64_t{0x7FF0000000000000});
  return 0;
}

/// Reads, casts and writes one tensor.
CastQuality cast_tensor(Stream cpu, const TensorSource& source, const SafetensorsEntry& entry,
                        const FileQuantization& how, uint64_t number, const TensorSink& write) {
  std::vector<char> bytes = source.read_bytes(entry);
  const View x = {bytes.data(), *entry.type.dtype, matrix_shape(entry)};
  QuantizedMatrix matrix = quantize_matrix(cpu, x, how.format, {how.seed, number});
  if (how.dequantize) {
    dequantize_matrix(cpu, matrix, how.format, x);
    write(entry.name, bytes.data());
  } else {
    write(code_entry(entry, how.format.dtype).name, matrix.codes.data());
    write(scale_entry(entry, how.format).name, matrix.scales.data());
    if (how.format.is_two_level()) write(tensor_scale_entry(entry).name, &matrix.tensor_scale);
  }
  return matrix.quality;
}

/// Writes one that is not cast; returns how many of its values are not finite.
uint64_t copy_tensor(const TensorSource& source, const SafetensorsEntry& entry,
                     const FileQuantization& how, const TensorSink& write) {
  if (how.others && is_rounded(entry)) {
    const std::vector<float> values = source.read_f32(entry.name, entry.shape);
    write(entry.name, encoded(values, *how.others, entry.name).data());
    return 0;
  }
  const std::vector<char> bytes = source.read_bytes(entry);
  write(entry.name, bytes.data());
  return not_finite(entry, bytes);
}

}  // namespace

std::vector<std::string> FileQuantizationReport::not_finite() const {
  std::vector<std::string> lines;
  for (const QuantizedEntry& tensor : tensors) {
    const uint64_t count = tensor.quality.not_a_number + tensor.quality.infinite;
    if (count > 0) {
      lines.push_back(fmt::format("{}: {} of {} values are NaN, {} infinite", tensor.name,
                                  tensor.quality.not_a_number, tensor.quality.statistics.count,
                                  tensor.quality.infinite));
    }
  }
  for (const CopiedTensor& tensor : copied) {
    if (tensor.not_finite > 0) {
      lines.push_back(fmt::format("{}: {} values are NaN or infinite, and are copied as they are",
                                  tensor.name, tensor.not_finite));
    }
  }
  return lines;
}

CastQuality FileQuantizationReport::total() const {
  CastQuality sum;
  for (const QuantizedEntry& tensor : tensors) {
    sum += tensor.quality;
  }
  return sum;
}

std::vector<ScaleBlock> quantization_blocks() {
  std::vector<ScaleBlock> blocks;
  for (const ops::BlockFormat& line : ops::block_formats()) {
    if (std::ranges::find(blocks, line.block) == blocks.end()) blocks.push_back(line.block);
  }
  return blocks;
}

void check_quantization(const TensorFormat& format) {
  if (const std::string why = ops::why_not_cast(format, quantization_blocks()); !why.empty()) {
    throw ConfigError(why);
  }
}

std::string_view scale_suffix(ScaleBlock block) {
  const bool blocks = block == per::block_1x128 || block == per::block_128x128;
  return blocks ? "_scale_inv" : "_scale";
}

bool is_cast(const SafetensorsEntry& entry, const FileQuantization& how) {
  return why_copied(entry, how).empty();
}

std::vector<SafetensorsEntry> quantized_entries(const TensorSource& source,
                                                const FileQuantization& how) {
  std::vector<SafetensorsEntry> outputs;
  for (const SafetensorsEntry* entry : source.entries()) {
    const bool cast = is_cast(*entry, how);
    if (cast && !how.dequantize) {
      outputs.push_back(code_entry(*entry, how.format.dtype));
      outputs.push_back(scale_entry(*entry, how.format));
      if (how.format.is_two_level()) outputs.push_back(tensor_scale_entry(*entry));
    } else if (!cast && how.others && is_rounded(*entry)) {
      outputs.push_back(safetensors_entry(entry->name, *how.others, entry->shape));
    } else {
      outputs.push_back(*entry);
    }
  }
  return outputs;
}

FileQuantizationReport quantize_tensors(const TensorSource& source, const FileQuantization& how,
                                        const TensorSink& write) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  FileQuantizationReport report;
  uint64_t number = 0;
  for (const SafetensorsEntry* entry : source.entries()) {
    const std::string reason = why_copied(*entry, how);
    if (reason.empty()) {
      report.tensors.push_back({entry->name, std::string(entry->type.name), entry->shape,
                                cast_tensor(device->stream(), source, *entry, how, number, write)});
    } else {
      report.copied.push_back({entry->name, reason, copy_tensor(source, *entry, how, write)});
    }
    ++number;
  }
  return report;
}

FileQuantizationReport quantize_file(const std::filesystem::path& from,
                                     const std::filesystem::path& to, const FileQuantization& how) {
  check_quantization(how.format);
  const TensorSource source(from);
  const std::vector<const SafetensorsEntry*> inputs = source.entries();
  if (std::none_of(inputs.begin(), inputs.end(),
                   [&](const SafetensorsEntry* entry) { return is_cast(*entry, how); })) {
    throw ConfigError(
        fmt::format("{}: none of its {} tensors is to be cast; fp32, bf16 and fp16 "
                    "tensors of two dimensions and more are, if the patterns leave "
                    "them",
                    from.string(), inputs.size()));
  }
  std::map<std::string, std::string> metadata = source.metadata();
  metadata["quantization"] = quantization_note(how);
  SafetensorsWriter writer(to, quantized_entries(source, how), metadata);
  FileQuantizationReport report = quantize_tensors(
      source, how, [&](const std::string& name, const void* data) { writer.write(name, data); });
  writer.commit();
  return report;
}

}  // namespace fp8train
