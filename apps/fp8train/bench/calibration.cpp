#include "bench/calibration.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"
#include "bench/parts.h"

namespace fp8train {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;

/// Finds the types of operands by their text; nothing if it is unknown.
std::optional<Fp8Product> operands_named(const std::string& text) {
  if (text == "bf16") {
    return Fp8Product{.a = DType::bf16, .b = DType::bf16};
  }
  for (size_t scales = 0; scales < kScalePairs; ++scales) {
    for (const DType a : ProductCodes::kTypes) {
      for (const DType b : ProductCodes::kTypes) {
        const Fp8Product product = {.scales = static_cast<ScalePair>(scales), .a = a, .b = b};
        if (operands_text(product) == text) {
          return product;
        }
      }
    }
  }
  return std::nullopt;
}

/// Reads an entry of "results". Throws ConfigError.
OpProduct product_of(const Json& entry) {
  OpProduct product;
  const auto shape = entry.at("shape").get<std::string>();
  const auto operands = entry.at("operands").get<std::string>();
  const std::optional<Fp8Product> type = operands_named(operands);
  const auto result = entry.at("result").get<std::string>();
  const bool is_f32 = result == "fp32" || result == "fp32 +=";
  long long m = 0, n = 0, k = 0;
  int read = 0;
  const bool has_shape = std::sscanf(shape.c_str(), "%lldx%lldx%lld%n", &m, &n, &k, &read) == 3 &&
                         static_cast<size_t>(read) == shape.size() && m > 0 && n > 0 && k > 0;
  if (!type || !has_shape || (!is_f32 && result != "bf16")) {
    throw ConfigError(
        fmt::format("unknown product '{}' of shape '{}' to '{}'", operands, shape, result));
  }
  product = {.m = m, .n = n, .k = k, .type = *type, .adds = result == "fp32 +="};
  product.type.c = is_f32 ? DType::f32 : DType::bf16;
  product.type.fast_accumulate =
      entry.at("fast_accumulate").get<bool>() && has_fast_accumulation(type->scales);
  return product;
}

MeasuredProducts products_of(const Json& report, const GpuKind& gpu) {
  const auto device = report.at("device").get<std::string>();
  if (gpu_kind_in(device) != &gpu) {
    throw ConfigError(fmt::format("it was measured on '{}', not on a {}", device, gpu.name));
  }
  MeasuredProducts products;
  size_t count = 0;
  for (const Json& entry : report.at("results")) {
    const double gflops = entry.value("gflops", 0.0);
    if (gflops > 0) {
      products.add(product_of(entry), 1e9 * gflops);
      count += 1;
    }
  }
  if (count == 0) {
    throw ConfigError("it has no rates");
  }
  return products;
}

}  // namespace

MeasuredProducts read_calibration(const std::string& path, const GpuKind& gpu) {
  try {
    return products_of(Json::parse(read_text_file(path, kMaxBytes)), gpu);
  } catch (const Json::exception& error) {
    throw ConfigError(
        fmt::format("--calibrate {}: not a report of `fp8train bench products "
                    "--json`: {}",
                    path, plain_json_error(error)));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("--calibrate {}: {}", path, error.what()));
  }
}

}  // namespace fp8train
