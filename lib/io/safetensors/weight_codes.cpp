#include "io/safetensors/weight_codes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/math.h"
#include "io/strict_json.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPacked = "_packed";
/// The ends of the names of a weight's other tensors, after "weight".
constexpr std::string_view kParts[] = {"_scale_inv",  "_scale", "_scale_2", "_global_scale",
                                       "_zero_point", kPacked,  "_shape"};
/// Scales of activations and of a cache, which only inference uses.
constexpr std::string_view kActivationScales[] = {
    "input_scale", "input_global_scale", "output_scale", "activation_scale", "k_scale", "v_scale"};

ScaleBlock block_of(const Json& object, const char* key, const std::string& where) {
  const Json& given = object.at(key);
  if (!given.is_array() || given.size() != 2) {
    throw CheckpointError(
        fmt::format("{}: {} is {}, expected two extents", where, key, given.dump()));
  }
  const Json named = {{"rows", given[0]}, {"columns", given[1]}};
  const ScaleBlock block = {whole_number<int32_t>(named, "rows", where),
                            whole_number<int32_t>(named, "columns", where)};
  if (block.rows < 1 || block.columns < 1) {
    throw CheckpointError(fmt::format("{}: {} is {}", where, key, given.dump()));
  }
  return block;
}

bool has(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && !object.at(key).is_null();
}

std::string text_of(const Json& object, const char* key) {
  return has(object, key) && object.at(key).is_string() ? object.at(key).get<std::string>() : "";
}

/// The weights of a group of compressed-tensors
/// (src/compressed_tensors/quantization/quant_args.py).
void read_group(const Json& weights, const std::string& where, WeightCodes& codes) {
  const auto bits = whole_number_or<int64_t>(weights, "num_bits", where, 8);
  const std::string type = text_of(weights, "type");
  if (bits != 8 && (bits != 4 || type != "float")) {
    throw CheckpointError(
        fmt::format("{}: weights of {} bits ({}) are not read", where, bits, type));
  }
  if (has(weights, "symmetric") && weights.at("symmetric") == false) {
    throw CheckpointError(where + ": weights with zero points (symmetric: false) are not read");
  }
  if (has(weights, "group_size")) {
    codes.block = {1, whole_number<int32_t>(weights, "group_size", where)};
  }
  if (has(weights, "block_structure")) {
    codes.block = block_of(weights, "block_structure", where);
  }
}

/// Blocks of codes that lie in the type of the format's scales, as fp32.
std::vector<float> read_factors(const TensorLocation& location,
                                const std::vector<SafetensorsFile>& files) {
  const SafetensorsEntry& entry = location.entry;
  const SafetensorsFile& file = files[location.file];
  const std::optional<DType> dtype = entry.type.dtype;
  if (dtype != DType::u8 && dtype != DType::e8m0 && dtype != DType::e4m3) {
    return file.read_f32(entry);
  }
  std::vector<uint8_t> bytes(entry.bytes());
  file.read(entry, bytes.data());
  std::vector<float> factors(bytes.size());
  std::ranges::transform(bytes, factors.begin(), [&](uint8_t bits) {
    return dtype == DType::e4m3 ? decode(e4m3{bits}) : decode(e8m0{bits});
  });
  return factors;
}

std::optional<DType> code_of(const SafetensorsEntry& entry, bool packed) {
  const std::optional<DType> dtype = entry.type.dtype;
  if (packed) return dtype == DType::u8 ? std::optional(DType::e2m1) : std::nullopt;
  return dtype && (is_fp8(*dtype) || *dtype == DType::i8) ? dtype : std::nullopt;
}

/// The blocks that the shape of the scales means.
void find_blocks(EncodedWeight& weight, ScaleBlock block, const std::string& where) {
  const std::vector<int64_t>& shape = weight.scales.entry.shape;
  const bool one = weight.scales.entry.count() == 1;
  const int64_t down = one ? 1 : shape.front();
  const int64_t across = one || shape.size() == 1 ? 1 : shape.back();
  weight.height = down == weight.rows ? 1 : down == 1 ? weight.rows : block.rows;
  weight.width = across == 1 ? weight.columns : across == weight.columns ? 1 : block.columns;
  if (shape.size() > 2 || weight.height < 1 || weight.width < 1 ||
      down != ceil_div(weight.rows, weight.height) ||
      across != ceil_div(weight.columns, weight.width)) {
    throw CheckpointError(fmt::format(
        "{}: '{}' has scales of shape [{}], which are not one for each block of {} of [{}, {}]",
        where, weight.codes.entry.name, fmt::join(shape, ", "), name_of(block), weight.rows,
        weight.columns));
  }
}

/// Exponents are scales of 32 codes (MX), and E4M3 ones those of 16, under a scale of the tensor
/// (NVFP4). Anything else would be read as other values without a word.
bool scales_fit(const EncodedWeight& weight) {
  const std::optional<DType> dtype = weight.scales.entry.type.dtype;
  if (dtype == DType::e4m3) {
    return weight.code == DType::e2m1 && weight.width == 16 && weight.above;
  }
  if (dtype == DType::u8 || dtype == DType::e8m0) {
    const bool is_stated = dtype == DType::e8m0 && weight.code != DType::e2m1;
    return (is_stated || weight.width == 32) && !weight.above;
  }
  return weight.code != DType::e2m1 && !weight.above;
}

/// Factors that are not negative and finite.
std::vector<float> checked_factors(const TensorLocation& location,
                                   const std::vector<SafetensorsFile>& files) {
  std::vector<float> factors = read_factors(location, files);
  const auto bad = std::ranges::find_if(
      factors, [](float factor) { return !(factor >= 0) || !std::isfinite(factor); });
  if (bad != factors.end()) {
    throw CheckpointError(fmt::format("{}: scale {} of '{}' is {}",
                                      files[location.file].path().string(), bad - factors.begin(),
                                      location.entry.name, *bad));
  }
  return factors;
}

}  // namespace

std::optional<WeightCodes> read_weight_codes(const Json& config, const std::string& where) {
  if (!has(config, "quantization_config")) return {};
  const Json& how = config.at("quantization_config");
  WeightCodes codes = {.method = text_of(how, "quant_method")};
  const std::string at = where + ": quantization_config";
  if (codes.method == "fp8") {
    if (has(how, "weight_block_size")) codes.block = block_of(how, "weight_block_size", at);
  } else if (codes.method == "compressed-tensors") {
    if (!has(how, "config_groups") || !how.at("config_groups").is_object()) {
      throw CheckpointError(at + ": no object 'config_groups'");
    }
    for (const auto& [name, group] : how.at("config_groups").items()) {
      if (has(group, "weights"))
        read_group(group.at("weights"), fmt::format("{}: {}", at, name), codes);
    }
  } else if (codes.method == "modelopt") {
    codes.block = {1, 16};
  } else if (codes.method != "fbgemm_fp8") {
    throw CheckpointError(fmt::format(
        "{}: weights of quant_method '{}' are not read (fp8, compressed-tensors, fbgemm_fp8 and "
        "modelopt are); use the folder that they were cast from",
        at, codes.method));
  }
  return codes;
}

bool is_part_of_codes(const std::string& name) {
  const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  const bool of_weight =
      last.starts_with("weight") &&
      std::ranges::find(kParts, last.substr(std::string_view("weight").size())) != std::end(kParts);
  return of_weight || std::ranges::find(kActivationScales, last) != std::end(kActivationScales);
}

std::optional<EncodedWeight> find_encoded_weight(const std::string& name, const WeightCodes& how,
                                                 const FindTensor& find, const std::string& where) {
  const auto part = [&](std::string_view suffix) { return find(name + std::string(suffix)); };
  const auto fail = [&](const std::string& what) {
    return CheckpointError(
        fmt::format("{}: '{}' {}; use the folder that it was cast from", where, name, what));
  };
  const TensorLocation* const packed = part(kPacked);
  const TensorLocation* const above[] = {part("_scale_2"), part("_global_scale")};
  const TensorLocation* const codes = packed != nullptr ? packed : part("");
  if (codes == nullptr || !name.ends_with("weight")) return {};
  // ModelOpt packs codes of 4 bits under the weight's own name.
  const bool halves =
      packed != nullptr || (above[0] != nullptr && codes->entry.type.dtype == DType::u8);
  const std::optional<DType> code = code_of(codes->entry, halves);
  const TensorLocation* const scales =
      part("_scale_inv") != nullptr ? part("_scale_inv") : part("_scale");
  if (!code && packed == nullptr) return {};
  if (!code) throw fail(fmt::format("is packed in {}, which is not read", codes->entry.type.name));
  if (scales == nullptr) throw fail(fmt::format("is {} without scales", codes->entry.type.name));
  if (part("_zero_point") != nullptr) throw fail("has zero points, which are not read");
  constexpr int64_t kMaxExtent = int64_t{1} << 40;
  if (codes->entry.shape.size() != 2 || std::ranges::max(codes->entry.shape) > kMaxExtent) {
    throw fail("is no matrix");
  }
  EncodedWeight weight = {.codes = *codes, .scales = *scales, .above = {}, .code = *code};
  for (const TensorLocation* const one : above) {
    if (one == nullptr) continue;
    if (one->entry.count() != 1) throw fail("has more than one scale above those of its blocks");
    weight.above = *one;
    weight.above_divides = one == above[1];
  }
  weight.rows = codes->entry.shape[0];
  weight.columns = codes->entry.shape[1] * (halves ? 2 : 1);
  find_blocks(weight, how.block, where);
  if (!scales_fit(weight)) {
    throw fail(fmt::format("has {} codes with {} scales for {}x{}{}, which no program writes",
                           name_of(weight.code), weight.scales.entry.type.name, weight.height,
                           weight.width, weight.above ? " under one of the tensor" : ""));
  }
  return weight;
}

bool are_in(const EncodedWeight& weight, const TensorFormat& format) {
  if (weight.above || weight.code != format.dtype) return false;
  const bool by_row =
      weight.width == weight.columns && (weight.height == 1 || weight.height == weight.rows);
  return format.block == per::row
             ? by_row
             : weight.height == format.block.rows && weight.width == format.block.columns;
}

std::vector<float> read_scales(const EncodedWeight& weight,
                               const std::vector<SafetensorsFile>& files) {
  std::vector<float> scales = checked_factors(weight.scales, files);
  if (weight.above) {
    const float given = checked_factors(*weight.above, files).front();
    const float above = weight.above_divides ? 1.0F / given : given;
    for (float& scale : scales) {
      scale *= above;
    }
  }
  return scales;
}

std::vector<float> decode_weight(const EncodedWeight& weight, const std::vector<float>& scales,
                                 const std::vector<SafetensorsFile>& files, int64_t first,
                                 int64_t count) {
  const bool halves = weight.code == DType::e2m1;  // rows are whole bytes
  const int64_t begin = halves ? first / 2 : first;
  const int64_t end = halves ? ceil_div(first + count, int64_t{2}) : first + count;
  std::vector<uint8_t> bytes(static_cast<size_t>(end - begin));
  files[weight.codes.file].read(weight.codes.entry, static_cast<uint64_t>(begin), bytes.size(),
                                bytes.data());
  const int64_t across = ceil_div(weight.columns, weight.width);
  std::vector<float> values(static_cast<size_t>(count));
  CodeTypes::with(weight.code, [&]<typename Code>(TypeTag<Code>) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = first + i;
      const int64_t at = (halves ? element / 2 : element) - begin;
      const auto byte =
          static_cast<uint8_t>(bytes[static_cast<size_t>(at)] >> (halves ? element % 2 * 4 : 0));
      Code code = {};
      if constexpr (std::is_same_v<Code, int8_t>) {
        code = static_cast<int8_t>(byte);
      } else {
        code = Code{halves ? static_cast<uint8_t>(byte & 0xFU) : byte};
      }
      const int64_t block = element / weight.columns / weight.height * across +
                            element % weight.columns / weight.width;
      values[static_cast<size_t>(i)] = decode(code) * scales[static_cast<size_t>(block)];
    }
  });
  return values;
}

}  // namespace fp8train
