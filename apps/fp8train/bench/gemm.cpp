#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "bench/bench.h"
#include "bench/parts.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

struct GemmResult {
  GemmShape shape;
  std::string
      operands;  ///< "fp32", "bf16", "e4m3 delayed", "e4m3 row", "e4m3 1x128 x 128x128", ...
  std::string engine;
  std::string dequantized_because;  ///< empty: multiplied as codes
  double alone;                     ///< FLOP/s of the product
  double with_casts;                ///< of the product and the casts of both operands
  double of_bf16;                   ///< with_casts, of the bf16 product of this shape
};

/// All products of one shape, from the same bf16 operands to a bf16 result, as in fprop.
class ShapeBench {
 public:
  ShapeBench(Device& device, const GemmShape& shape, double seconds)
      : device_(&device),
        shape_(shape),
        seconds_(seconds),
        a_(random_matrix(device, DType::bf16, shape.m, shape.k)),
        b_(random_matrix(device, DType::bf16, shape.n, shape.k)),
        c_(device, DType::bf16, {shape.m, shape.n}, MemoryCategory::workspace) {}

  std::vector<GemmResult> run() {
    using namespace per;
    std::vector<GemmResult> results = {wide(), plain_bf16()};
    for (const ScalePolicy policy : {ScalePolicy::delayed, ScalePolicy::current}) {
      const TensorFormat format = codes_format(per::tensor, DType::e4m3, policy);
      results.push_back(of_codes(policy == ScalePolicy::delayed ? "e4m3 delayed" : "e4m3 current",
                                 format, format));
    }
    results.push_back(blocks(row, row, DType::i8));
    for (const auto& [a, b] : {std::pair{row, row},
                               {block_1x128, block_128x128},
                               {block_1x128, block_1x128},
                               {block_1x32, block_1x32}}) {
      results.push_back(blocks(a, b, DType::e4m3));
    }
    const double bf16 = results[1].with_casts;
    for (GemmResult& result : results) {
      result.of_bf16 = result.with_casts / bf16;
    }
    return results;
  }

 private:
  using Work = std::function<void()>;

  double rate(const Work& work) const {
    return shape_.flops() / device_seconds(*device_, work, seconds_);
  }

  GemmResult measured(const std::string& operands, DType type, const Work& casts,
                      const Work& product) const {
    GemmResult result = {};
    result.shape = shape_;
    result.operands = operands;
    result.engine = gemm_engine(*device_, type);
    if (casts) {
      casts();  // operands for the product alone
      result.with_casts = rate([&] {
        casts();
        product();
      });
    }
    result.alone = rate(product);
    result.with_casts = casts ? result.with_casts : result.alone;
    return result;
  }

  GemmResult wide() const {
    const Tensor a(*device_, DType::f32, {shape_.m, shape_.k}, MemoryCategory::workspace);
    const Tensor b(*device_, DType::f32, {shape_.n, shape_.k}, MemoryCategory::workspace);
    const Tensor c(*device_, DType::f32, {shape_.m, shape_.n}, MemoryCategory::workspace);
    ops::cast(device_->stream(), a_, a);
    ops::cast(device_->stream(), b_, b);
    return measured("fp32", DType::f32, nullptr, [&] {
      ops::gemm(device_->stream(), {.a = {a.view()}, .b = {b.view(), true}, .c = c});
    });
  }

  GemmResult plain_bf16() const {
    return measured("bf16", DType::bf16, nullptr, [&] {
      ops::gemm(device_->stream(), {.a = {a_.view()}, .b = {b_.view(), true}, .c = c_});
    });
  }

  GemmResult blocks(ScaleBlock a, ScaleBlock b, DType type) const {
    std::string operands = std::string(name_of(type)) + " " + std::string(name_of(a));
    if (a != b) {
      operands += " x " + std::string(name_of(b));
    }
    return of_codes(operands, codes_format(a, type), codes_format(b, type));
  }

  GemmResult of_codes(const std::string& operands, const TensorFormat& a_format,
                      const TensorFormat& b_format) const {
    const BenchCodes a(*device_, a_format, shape_.m, shape_.k);
    const BenchCodes b(*device_, b_format, shape_.n, shape_.k);
    ops::Gemm call = {.a = a.operand(false), .b = b.operand(true), .c = c_};
    const size_t bytes = ops::gemm_scratch_bytes(device_->traits(), call);
    const Buffer scratch(*device_, bytes, MemoryCategory::workspace);
    call.scratch = {scratch.data(), DType::u8, {static_cast<int64_t>(bytes)}};
    const ops::GemmSupport support = ops::gemm_support(device_->traits(), call);
    const auto casts = [&] {
      a.cast(device_->stream(), a_);
      b.cast(device_->stream(), b_);
    };
    GemmResult result = measured(operands, support.native ? a_format.dtype : DType::bf16, casts,
                                 [&] { ops::gemm(device_->stream(), call); });
    result.dequantized_because = support.reason;
    return result;
  }

  Device* device_;
  GemmShape shape_;
  double seconds_;
  Tensor a_, b_, c_;
};

/// Operands of as many bits have one ceiling.
std::string width_of(const GemmResult& result) {
  return result.operands.substr(0, result.operands.find(' '));
}

/// "512,1024x4096x512": square shapes, or M x N x K.
std::vector<GemmShape> parse_gemm_shapes(const std::string& text) {
  std::vector<GemmShape> shapes;
  for (const std::string& shape : split(text, ',')) {
    std::vector<int64_t> extents;
    for (const std::string& extent : split(shape, 'x')) {
      extents.push_back(std::strtoll(extent.c_str(), nullptr, 10));
    }
    const bool positive = std::all_of(extents.begin(), extents.end(), [](auto e) { return e > 0; });
    if (!positive || (extents.size() != 1 && extents.size() != 3)) {
      throw ConfigError("--sizes: expected positive sizes, or shapes MxNxK, with commas, got '" +
                        text + "'");
    }
    shapes.push_back({extents.front(), extents[extents.size() / 2], extents.back()});
  }
  return shapes;
}

Json measure_gemms(Device& device, const BenchOptions& options) {
  const bool gpu = device.kind() == DeviceKind::cuda;
  std::vector<GemmResult> all;
  for (const GemmShape& shape : parse_gemm_shapes(!options.sizes.empty() ? options.sizes
                                                  : gpu                  ? "4096,8192"
                                                                         : "256,512,1024")) {
    const std::vector<GemmResult> some = ShapeBench(device, shape, options.seconds / 12).run();
    all.insert(all.end(), some.begin(), some.end());
  }
  std::map<std::string, double> ceilings;  // of products alone
  for (const GemmResult& result : all) {
    double& ceiling = ceilings[width_of(result)];
    ceiling = std::max(ceiling, result.alone);
  }
  Json results = Json::array();
  for (const GemmResult& result : all) {
    results.push_back({{"shape", result.shape.text()},
                       {"operands", result.operands},
                       {"engine", result.engine},
                       {"gflops", result.alone / 1e9},
                       {"gflops_with_casts", result.with_casts / 1e9},
                       {"of_bf16", result.of_bf16},
                       {"share_of_ceiling", result.with_casts / ceilings[width_of(result)]}});
    if (!result.dequantized_because.empty()) {
      results.back()["dequantized"] = result.dequantized_because;
    }
  }
  return {{"results", results}};
}

void add_gemm_options(Arguments part, BenchOptions& options) {
  part.option("--sizes", options.sizes, "Square sizes, or shapes MxNxK, with commas");
}

}  // namespace

const BenchPart kGemmBench = {.name = "gemm",
                              .help = "Products in FP8, with their casts, against bf16",
                              .example = "fp8train bench gemm --sizes 1024,512x2048x512",
                              .add_options = add_gemm_options,
                              .measure = measure_gemms,
                              .is_tuned = true};

}  // namespace fp8train
