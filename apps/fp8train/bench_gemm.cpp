#include "bench_gemm.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>

#include "base/error.h"
#include "bench.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

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
    std::vector<GemmResult> results = {wide(), plain_bf16(), one_scale(false), one_scale(true)};
    for (const auto& [a, b] : {std::pair{row, row},
                               {block_1x128, block_128x128},
                               {block_1x128, block_1x128},
                               {block_1x32, block_1x32}}) {
      results.push_back(blocks(a, b));
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
    const double flops = 2.0 * static_cast<double>(shape_.m) * static_cast<double>(shape_.n) *
                         static_cast<double>(shape_.k);
    return flops / device_seconds(*device_, work, seconds_);
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

  GemmResult one_scale(bool current) const {
    const TensorCodes a(*device_, DType::e4m3, shape_.m, shape_.k, false);
    const TensorCodes b(*device_, DType::e4m3, shape_.n, shape_.k, false);
    const auto casts = [&] {
      a.cast(device_->stream(), a_, current);
      b.cast(device_->stream(), b_, current);
    };
    const auto product = [&] {
      ops::gemm(device_->stream(), {.a = {a.codes.view(), false, a.scale_inv()},
                                    .b = {b.codes.view(), true, b.scale_inv()},
                                    .c = c_});
    };
    return measured(current ? "e4m3 current" : "e4m3 delayed", DType::e4m3, casts, product);
  }

  GemmResult blocks(ScaleBlock a_block, ScaleBlock b_block) const {
    const TensorFormat a_format = blockwise_role_format(a_block);
    const TensorFormat b_format = blockwise_role_format(b_block);
    const BlockwiseCodes a(*device_, a_format, shape_.m, shape_.k);
    const BlockwiseCodes b(*device_, b_format, shape_.n, shape_.k);
    const auto cast = [&](const Tensor& x, const BlockwiseCodes& codes,
                          const TensorFormat& format) {
      QuantizedTensor out;
      out.rowwise = codes.view();
      out.format = format;
      out.layout = codes.layout;
      ops::quantize(device_->stream(), x, out, nullptr, nullptr);
    };
    ops::Gemm call = {.a = ops::block_operand(a.view(), a_format, a.layout, false),
                      .b = ops::block_operand(b.view(), b_format, b.layout, true),
                      .c = c_};
    call.fast_accumulate = a_block == per::row || a_block == per::block_1x32;
    const size_t bytes = ops::gemm_scratch_bytes(device_->traits(), call);
    const Buffer scratch(*device_, bytes, MemoryCategory::workspace);
    call.scratch = {scratch.data(), DType::u8, {static_cast<int64_t>(bytes)}};
    const ops::GemmSupport support = ops::gemm_support(device_->traits(), call);
    std::string operands = "e4m3 " + std::string(name_of(a_block));
    if (a_block != b_block) {
      operands += " x " + std::string(name_of(b_block));
    }
    const auto casts = [&] {
      cast(a_, a, a_format);
      cast(b_, b, b_format);
    };
    GemmResult result = measured(operands, support.native ? DType::e4m3 : DType::bf16, casts,
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

}  // namespace

std::vector<GemmResult> gemm_results(Device& device, const std::vector<GemmShape>& shapes,
                                     double seconds) {
  std::vector<GemmResult> results;
  for (const GemmShape& shape : shapes) {
    const std::vector<GemmResult> some = ShapeBench(device, shape, seconds).run();
    results.insert(results.end(), some.begin(), some.end());
  }
  std::map<std::string, double> ceilings;
  for (const GemmResult& result : results) {
    double& ceiling = ceilings[width_of(result)];
    ceiling = std::max(ceiling, result.alone);
  }
  for (GemmResult& result : results) {
    result.share_of_ceiling = result.with_casts / ceilings[width_of(result)];
  }
  return results;
}

std::vector<GemmShape> parse_gemm_shapes(const std::string& text) {
  std::vector<GemmShape> shapes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    std::vector<int64_t> extents;
    for (size_t at = begin; at < comma;) {
      const size_t cross = std::min(text.find('x', at), comma);
      extents.push_back(std::strtoll(text.substr(at, cross - at).c_str(), nullptr, 10));
      at = cross + 1;
    }
    const bool positive = std::all_of(extents.begin(), extents.end(), [](auto e) { return e > 0; });
    if (!positive || (extents.size() != 1 && extents.size() != 3)) {
      throw ConfigError("--sizes: expected positive sizes, or shapes MxNxK, with commas, got '" +
                        text + "'");
    }
    shapes.push_back({extents.front(), extents[extents.size() / 2], extents.back()});
    begin = comma + 1;
  }
  return shapes;
}

}  // namespace fp8train
