// One small product of known result for each entry of the table of FP8 products, before memory is
// planned. Codes are small integers and scales are multiples of a half, so that the result is exact
// in fp32 whatever the order of sums. Every extent has a part of a block left over; a product that
// is refused so is tried again with extents that are multiples of 8, 16 and 128. cuBLASLt's
// heuristic answers for modes that it then refuses, and releases have ignored scales. A change of
// what is tried raises kProbeVersion (ops/gemm/gemm_support.h).

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "ops/cast/block_formats.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/gemm/cublaslt_api.h"
#include "ops/gemm/gemm_plans_cuda.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::ops::cuda {
namespace {

struct Extents {
  int64_t m, n, k;
};
/// For each support, best first. Not every release takes a multiple of 4 for M with 1x128 scales
/// (TransformerEngine's cublaslt_gemm.cu asserts multiples of 8), nor 8 for N (vLLM #4691).
constexpr std::pair<Fp8Support, Extents> kExtents[] = {{Fp8Support::any, {132, 152, 160}},
                                                       {Fp8Support::by_8, {136, 152, 160}},
                                                       {Fp8Support::by_16, {144, 176, 160}},
                                                       {Fp8Support::by_128, {128, 256, 256}}};

constexpr float kTensorScale = 0.5F;  // of both operands together, where there is one

/// An operand [rows, columns] on the host and its copy on the device.
struct Operand {
  Operand(Device& device, ScaleBlock block, DType dtype, int64_t rows, int64_t columns,
          int64_t seed);

  ScaleBlock block;
  DType dtype;
  Shape shape;
  std::vector<uint8_t> codes;
  std::vector<float> values;  ///< what they stand for
  std::vector<uint8_t> scale_bytes;
  Buffer device_codes, device_scales;
};

/// The type of the scales; the first where formats may choose.
ScaleType scale_type_of(ScaleBlock block) {
  return find_block_format(block)->scales.front();
}

/// Whether the tensor has a scale above those of its blocks.
bool is_two_level(ScaleBlock block) {
  return facts_of(scale_type_of(block)).two_level;
}

/// The scale of a block: one of four, all exact in its type.
float scale_at(ScaleBlock block, int64_t row, int64_t column, int64_t seed) {
  const int64_t kind = (3 * row + 5 * column + seed) % 4;
  return scale_type_of(block) == ScaleType::e8m0 ? power_of_two(static_cast<int>(kind) - 1)
                                                 : 0.5F + 0.5F * static_cast<float>(kind);
}

/// Scales as cuBLASLt reads them, zeros between; one for per::tensor.
std::vector<uint8_t> scales_of(ScaleBlock block, int64_t rows, int64_t columns, int64_t seed) {
  if (block == per::tensor) {
    const float scale = scale_at(block, 0, 0, seed);
    std::vector<uint8_t> bytes(sizeof(scale));
    std::memcpy(bytes.data(), &scale, sizeof(scale));
    return bytes;
  }
  const ScaleGrid grid = scale_grid(block, rows, columns, ScaleLayout::cublaslt);
  const DType type = dtype_of(scale_type_of(block));
  const size_t size = size_of(type);
  std::vector<uint8_t> bytes(static_cast<size_t>(grid.count) * size);
  for (int64_t row = 0; row < grid.rows; ++row) {
    for (int64_t column = 0; column < grid.columns; ++column) {
      const float scale = scale_at(block, row, column, seed);
      uint8_t* to = bytes.data() + static_cast<size_t>(grid.offset(row, column)) * size;
      with_type<float, e4m3, e8m0>(type, [&]<typename T>(TypeTag<T>) {
        if constexpr (std::is_same_v<T, e8m0>) {
          *to = encode_e8m0_round_up(scale).bits;
        } else {
          const T stored = encode<T>(scale);
          std::memcpy(to, &stored, sizeof(stored));
        }
      });
    }
  }
  return bytes;
}

uint8_t encoded(DType dtype, float value) {
  uint8_t bits = 0;
  ProductCodes::with(dtype,
                     [&](auto tag) { bits = encode<typename decltype(tag)::Type>(value).bits; });
  return bits;
}

Operand::Operand(Device& device, ScaleBlock scaled_by, DType code_type, int64_t rows,
                 int64_t columns, int64_t seed)
    : block(scaled_by),
      dtype(code_type),
      shape({rows, columns}),
      scale_bytes(scales_of(block, rows, columns, seed)),
      device_codes(device, bytes_of_rows(dtype, rows, columns), MemoryCategory::workspace),
      device_scales(device, scale_bytes.size(), MemoryCategory::workspace) {
  const ScaleGrid grid = scale_grid(block, rows, columns, ScaleLayout::row_major);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < columns; ++k) {
      const float code = static_cast<float>((7 * row + 3 * k + row / 5 + seed) % 5 - 2);
      if (dtype == DType::e2m1 && k % 2 == 1) {
        codes.back() = static_cast<uint8_t>(codes.back() | encode<e2m1>(code).bits << 4);
      } else {
        codes.push_back(encoded(dtype, code));
      }
      values.push_back(code * scale_at(block, row / grid.height, k / grid.width, seed));
    }
  }
  device.copy_from_host(device_codes.data(), codes.data(), codes.size());
  device.copy_from_host(device_scales.data(), scale_bytes.data(), scale_bytes.size());
}

std::vector<float> exact_product(const Operand& a, const Operand& b) {
  const int64_t k = a.shape[1];
  std::vector<float> product;
  for (int64_t m = 0; m < a.shape[0]; ++m) {
    for (int64_t n = 0; n < b.shape[0]; ++n) {
      const float* left = a.values.data() + m * k;
      const float* right = b.values.data() + n * k;
      float sum = 0.0F;
      for (int64_t i = 0; i < k; ++i) {
        sum += left[i] * right[i];
      }
      product.push_back(is_two_level(a.block) ? kTensorScale * sum : sum);
    }
  }
  return product;
}

/// Operands of one mode and their exact product.
struct Problem {
  Problem(Device& device, const BlockPair& mode, std::pair<DType, DType> types,
          const Extents& extents)
      : a(device, mode.a, types.first, extents.m, extents.k, 1),
        b(device, mode.b, types.second, extents.n, extents.k, 2),
        expected(exact_product(a, b)),
        c(device, expected.size() * sizeof(float), MemoryCategory::workspace),
        factors(device, 2 * sizeof(float), MemoryCategory::workspace) {}

  Operand a, b;
  std::vector<float> expected;  ///< [M, N]
  Buffer c, factors;
};

/// `adds`: to a result of ones, as weight gradients of later micro-batches are; otherwise a result
/// of NaN is overwritten.
bool gives_expected_product(Device& device, const Problem& problem, DType c_type, bool fast,
                            bool adds) {
  const auto operand = [](const Operand& from, bool transposed) {
    return ProductOperand{{from.device_codes.data(), from.dtype, from.shape},
                          transposed,
                          from.block,
                          from.device_scales.data()};
  };
  const std::vector<float>& expected = problem.expected;
  const std::vector<float> before(expected.size(),
                                  adds ? 1.0F : std::numeric_limits<float>::quiet_NaN());
  device.copy_from_host(problem.c.data(), before.data(), problem.c.bytes());
  const float factors[2] = {kTensorScale, adds ? 1.0F : 0.0F};
  device.copy_from_host(problem.factors.data(), factors, sizeof(factors));
  gemm_plans(cuda_context(device.stream()))
      .run({.a = operand(problem.a, false),
            .b = operand(problem.b, true),
            .c = {problem.c.data(), c_type, {problem.a.shape[0], problem.b.shape[0]}},
            .beta = factors[1],
            .fast_accumulate = fast,
            .factors = is_two_level(problem.a.block)
                           ? static_cast<const float*>(problem.factors.data())
                           : nullptr});
  std::vector<uint8_t> got(expected.size() * size_of(c_type));
  device.copy_to_host(got.data(), problem.c.data(), got.size());
  bool right = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float sum = adds ? expected[i] + 1.0F : expected[i];
    const bf16 as_bf16 = encode<bf16>(expected[i]);
    const f16 as_f16 = encode<f16>(expected[i]);
    const void* wanted = c_type == DType::f32    ? static_cast<const void*>(&sum)
                         : c_type == DType::bf16 ? static_cast<const void*>(&as_bf16)
                                                 : &as_f16;
    right = right && std::memcmp(got.data() + i * size_of(c_type), wanted, size_of(c_type)) == 0;
  }
  return right;
}

/// Empty, or what is wrong with the library's product; `is_final` becomes false if that may pass.
/// Throws DeviceError if something else is wrong: the GPU does not answer, or there is no memory.
std::string try_product(Device& device, const Problem& problem, DType c_type, bool fast,
                        bool& is_final) {
  try {
    const bool right =
        gives_expected_product(device, problem, c_type, fast, false) &&
        (c_type != DType::f32 || gives_expected_product(device, problem, c_type, fast, true));
    return right ? "" : "a wrong product";
  } catch (const CublasError& error) {
    if (error.status() == CUBLAS_STATUS_ALLOC_FAILED ||
        error.status() == CUBLAS_STATUS_NOT_INITIALIZED) {
      throw;
    }
    is_final = is_final && error.is_refusal();
    cudaGetLastError();    // the library may leave an error of its own
    device.synchronize();  // but not one of the GPU
    return error.what();
  }
}

/// The refused products for the log, listed together where reason and consequence are the same.
class Refusals {
 public:
  void add(const Fp8Product& product, const std::string& why, const std::string& consequence) {
    lists_[{product.scales, why, consequence}].push_back(
        fmt::format("{} x {} to {}{}", name_of(product.a), name_of(product.b), name_of(product.c),
                    product.fast_accumulate ? " with fast accumulation" : ""));
  }
  bool& are_final() { return are_final_; }
  void print() const {
    for (const auto& [key, products] : lists_) {
      const auto& [scales, why, consequence] = key;
      log_warning(fmt::format("cuBLASLt {} on this GPU does not multiply {} with {} scales: {}; {}",
                              cublaslt().get_version(), fmt::join(products, ", "), name_of(scales),
                              why, consequence));
    }
  }

 private:
  std::map<std::tuple<ScalePair, std::string, std::string>, std::vector<std::string>> lists_;
  bool are_final_ = true;
};

/// Words the consequence of a refusal for runs.
std::string consequence_of(const Fp8Products& products, const Fp8Product& refused) {
  const Fp8Support support = products.support(refused);
  if (support != Fp8Support::none) {
    return fmt::format(
        "it does where M, N and K are multiples of {}; operands of other shapes are "
        "dequantized",
        extent_multiple(support));
  }
  Fp8Product accurate = refused;
  accurate.fast_accumulate = false;
  if (refused.fast_accumulate && products.support(accurate) != Fp8Support::none) {
    return "they run without fast accumulation";
  }
  return refused.scales == ScalePair::tensor ? "plans that need them are refused"
                                             : "their operands are dequantized instead";
}

/// Problems of one mode and pair of codes, made when they are first asked for.
class Problems {
 public:
  Problems(Device& device, const BlockPair& mode, std::pair<DType, DType> codes)
      : device_(&device), mode_(&mode), codes_(codes) {}

  const Problem& of(size_t level) {
    if (!made_[level]) {
      made_[level].emplace(*device_, *mode_, codes_, kExtents[level].second);
    }
    return *made_[level];
  }

 private:
  Device* device_;
  const BlockPair* mode_;
  std::pair<DType, DType> codes_;
  std::optional<Problem> made_[std::size(kExtents)];
};

/// Tries the products of one mode and pair of codes; what fails gets less support in the table.
void probe(Device& device, const BlockPair& mode, std::pair<DType, DType> codes,
           Fp8Products& products, Refusals& refusals) {
  Problems problems(device, mode, codes);
  for (const DType c : ProductResults::kTypes) {
    for (const bool fast : {false, true}) {
      if (fast && !has_fast_accumulation(mode.scales)) {
        continue;
      }
      const Fp8Product product = {mode.scales, codes.first, codes.second, c, fast};
      const std::string wrong = try_product(device, problems.of(0), c, fast, refusals.are_final());
      if (wrong.empty()) {
        continue;
      }
      size_t level = 1;
      while (level < std::size(kExtents) &&
             !try_product(device, problems.of(level), c, fast, refusals.are_final()).empty()) {
        level += 1;
      }
      products.set(product, level < std::size(kExtents) ? kExtents[level].first : Fp8Support::none);
      refusals.add(product, wrong, consequence_of(products, product));
    }
  }
}

/// The pairs of element types that are multiplied with these scales.
std::vector<std::pair<DType, DType>> products_of(ScalePair scales) {
  std::vector<std::pair<DType, DType>> pairs;
  for (const DType b : ProductCodes::kTypes) {
    for (const DType a : ProductCodes::kTypes) {
      if (have_product(scales, a, b)) {
        pairs.emplace_back(a, b);
      }
    }
  }
  return pairs;
}

}  // namespace

bool probe_gemms(Device& device, const Fp8Products* known) {
  DeviceTraits traits = device.traits();
  Refusals refusals;
  for (const BlockPair& mode : block_pairs()) {
    // Squares whose scales are stored by rows are the same products.
    const bool is_known = mode.a.as_stored() != mode.a || mode.b.as_stored() != mode.b;
    if (is_known || !traits.fp8_products.has(mode.scales)) {
      continue;
    }
    // A missing library is an error of its own.
    traits.fp8_library = &gemm_plans(cuda_context(device.stream()));
    if (known != nullptr) {
      continue;
    }
    for (const auto& codes : products_of(mode.scales)) {
      try {
        probe(device, mode, codes, traits.fp8_products, refusals);
      } catch (const DeviceError& error) {
        throw DeviceError(fmt::format(
            "the GPU fails at a first product of {} x {} with {} scales: {}", name_of(codes.first),
            name_of(codes.second), name_of(mode.scales), error.what()));
      }
    }
  }
  refusals.print();
  device.set_traits(traits);
  return refusals.are_final();
}

}  // namespace fp8train::ops::cuda
