#include "io/export/quantization_config.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "numeric/dtype.h"

namespace fp8train {
namespace {

ConfigValue::List list_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

ConfigObject fine_grained(const std::vector<std::string>& plain_modules) {
  constexpr int64_t kBlock = 128;
  ConfigObject config;
  set(config, "quant_method", "fp8");
  set(config, "fmt", "e4m3");
  set(config, "activation_scheme", "dynamic");
  set(config, "weight_block_size", ConfigValue::List{kBlock, kBlock});
  set(config, "modules_to_not_convert", list_of(plain_modules));
  return config;
}

ConfigObject eight_bits(std::string_view type, std::string_view strategy, bool dynamic) {
  constexpr int64_t kBits = 8;
  ConfigObject values;
  set(values, "num_bits", kBits);
  set(values, "type", type);
  set(values, "strategy", strategy);
  set(values, "symmetric", true);
  set(values, "dynamic", dynamic);
  return values;
}

ConfigObject compressed_tensors(std::string_view type, std::string_view strategy,
                                const std::vector<std::string>& plain_modules) {
  const std::string format = fmt::format("{}-quantized", type);
  ConfigObject group;
  set(group, "targets", ConfigValue::List{"Linear"});
  set(group, "weights", eight_bits(type, strategy, false));
  set(group, "input_activations", eight_bits(type, "token", true));
  set(group, "output_activations", ConfigValue());
  set(group, "format", format);
  ConfigObject groups;
  set(groups, "group_0", group);
  ConfigObject config;
  set(config, "quant_method", "compressed-tensors");
  set(config, "format", format);
  set(config, "quantization_status", "compressed");
  set(config, "config_groups", groups);
  set(config, "ignore", list_of(plain_modules));
  set(config, "kv_cache_scheme", ConfigValue());
  return config;
}

}  // namespace

ConfigObject quantization_config(const TensorFormat& format,
                                 const std::vector<std::string>& plain_modules) {
  const bool tensor = format.block == per::tensor;
  if (format.dtype == DType::e4m3 && format.block == per::block_128x128) {
    return fine_grained(plain_modules);
  }
  if ((format.dtype == DType::e4m3 || format.dtype == DType::i8) &&
      (tensor || format.block == per::row)) {
    return compressed_tensors(format.dtype == DType::i8 ? "int" : "float",
                              tensor ? "tensor" : "channel", plain_modules);
  }
  throw ConfigError(fmt::format(
      "a folder with weights in {}: no program reads one; take e4m3 with granularity 128x128, "
      "tensor or row, or int8 with tensor or row (single .safetensors files may have all formats)",
      describe(format)));
}

}  // namespace fp8train
