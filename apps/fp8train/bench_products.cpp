#include "bench_products.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "bench.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train {
namespace {

enum class Pass : uint8_t { fprop, dgrad, wgrad };

const char* pass_name(Pass pass) {
  return pass == Pass::fprop ? "fprop" : pass == Pass::dgrad ? "dgrad" : "wgrad";
}

/// y = x w^T, dx = dy w and dw = dy^T x, as c[m, n] with k contracted.
GemmShape shape_of(Pass pass, const LinearSite& site, int64_t rows) {
  switch (pass) {
    case Pass::fprop:
      return {rows, site.out_features, site.in_features};
    case Pass::dgrad:
      return {rows, site.in_features, site.out_features};
    default:
      return {site.out_features, site.in_features, rows};
  }
}

/// Where products of a weight's gradient go, and the others'.
struct Result {
  DType dtype;
  float beta;
  const char* name;
};
std::vector<Result> results_of(Pass pass) {
  if (pass == Pass::wgrad) {
    return {{DType::f32, 0.0F, "fp32"}, {DType::f32, 1.0F, "fp32 +="}};
  }
  return {{DType::bf16, 0.0F, "bf16"}};
}

View with_shape(View view, const Shape& shape) {
  view.shape = shape;
  return view;
}

/// One product of one layer in every way of some modes.
class ProductBench {
 public:
  ProductBench(Device& device, std::string layer, Pass pass, const GemmShape& shape, double seconds)
      : device_(&device),
        layer_(std::move(layer)),
        pass_(pass),
        shape_(shape),
        seconds_(seconds),
        a_(random_matrix(device, DType::bf16, shape.m, shape.k)),
        b_(random_matrix(device, DType::bf16, shape.n, shape.k)),
        c_(device, pass == Pass::wgrad ? DType::f32 : DType::bf16, {shape.m, shape.n},
           MemoryCategory::workspace) {}

  std::vector<ProductRate> run(const std::vector<ProductMode>& modes) {
    for (const ProductMode mode : modes) {
      switch (mode) {
        case ProductMode::bf16:
          plain();
          break;
        case ProductMode::tensor:
          tensor_scales();
          break;
        case ProductMode::row:
          blocks(per::row, per::row, {false, true});
          break;
        case ProductMode::block:
          blocks(per::block_1x128, pass_ == Pass::wgrad ? per::block_1x128 : per::block_128x128,
                 {false});
          break;
        case ProductMode::mx:
          blocks(per::block_1x32, per::block_1x32, {true});
          break;
      }
    }
    return std::move(rates_);
  }

 private:
  using Work = std::function<void(const Result&)>;

  /// Each result of `work`.
  void measure(const std::string& operands, bool fast, const Work& work) {
    for (const Result& result : results_of(pass_)) {
      ProductRate rate = named(operands, fast, result);
      try {
        const double flops = 2.0 * static_cast<double>(shape_.m) * static_cast<double>(shape_.n) *
                             static_cast<double>(shape_.k);
        rate.flops_per_second = flops / device_seconds(
                                            *device_, [&] { work(result); }, seconds_);
      } catch (const DeviceError& error) {
        rate.error = error.what();
      }
      rates_.push_back(std::move(rate));
    }
  }

  ProductRate named(const std::string& operands, bool fast, const Result& result) const {
    ProductRate rate;
    rate.layer = layer_;
    rate.product = pass_name(pass_);
    rate.shape = shape_;
    rate.operands = operands;
    rate.result = result.name;
    rate.fast_accumulate = fast;
    return rate;
  }

  /// Operands as layers have them in bf16: backward reads what forward has, transposed by the GEMM.
  void plain() {
    ops::GemmOperand a = {a_.view()};
    ops::GemmOperand b = {b_.view(), true};
    if (pass_ != Pass::fprop) {
      b = {with_shape(b_.view(), {shape_.k, shape_.n})};
    }
    if (pass_ == Pass::wgrad) {
      a = {with_shape(a_.view(), {shape_.k, shape_.m}), true};
    }
    measure("bf16", false, [&](const Result& result) {
      ops::gemm(device_->stream(), {.a = a, .b = b, .c = c_, .beta = result.beta});
    });
  }

  void tensor_scales() {
    const TensorCodes b(*device_, DType::e4m3, shape_.n, shape_.k, false);
    b.cast(device_->stream(), b_, false);
    for (const DType type : {DType::e4m3, DType::e5m2}) {
      if (type == DType::e5m2 && pass_ == Pass::fprop) {
        continue;  // gradients only
      }
      const TensorCodes a(*device_, type, shape_.m, shape_.k, false);
      a.cast(device_->stream(), a_, false);
      for (const bool fast : {false, true}) {
        measure(fmt::format("{} x e4m3", name_of(type)), fast, [&](const Result& result) {
          ops::gemm(device_->stream(), {.a = {a.codes.view(), false, a.scale_inv()},
                                        .b = {b.codes.view(), true, b.scale_inv()},
                                        .c = c_,
                                        .beta = result.beta,
                                        .fast_accumulate = fast});
        });
      }
    }
  }

  BlockwiseCodes cast(const Tensor& x, const TensorFormat& format) const {
    const Shape& shape = x.view().shape;
    BlockwiseCodes codes(*device_, format, shape[0], shape[1]);
    QuantizedTensor out;
    out.rowwise = codes.view();
    out.format = format;
    out.layout = codes.layout;
    ops::quantize(device_->stream(), x, out, nullptr, nullptr);
    return codes;
  }

  void blocks(ScaleBlock of_a, ScaleBlock of_b, const std::vector<bool>& accumulations) {
    const TensorFormat a_format = blockwise_role_format(of_a);
    const TensorFormat b_format = blockwise_role_format(of_b);
    const std::string operands = fmt::format("e4m3 {} x e4m3 {}", name_of(of_a), name_of(of_b));
    const BlockwiseCodes a = cast(a_, a_format);
    const BlockwiseCodes b = cast(b_, b_format);
    ops::Gemm call = {.a = ops::block_operand(a.view(), a_format, a.layout, false),
                      .b = ops::block_operand(b.view(), b_format, b.layout, true),
                      .c = c_};
    for (const bool fast : accumulations) {
      call.fast_accumulate = fast;
      const auto support = ops::gemm_support(device_->traits(), call);
      if (!support.native) {
        for (const Result& result : results_of(pass_)) {
          rates_.push_back(named(operands, fast, result));
          rates_.back().dequantized_because = support.reason;
        }
        continue;
      }
      measure(operands, fast, [&](const Result& result) {
        call.beta = result.beta;
        ops::gemm(device_->stream(), call);
      });
    }
  }

  Device* device_;
  std::string layer_;
  Pass pass_;
  GemmShape shape_;
  double seconds_;
  Tensor a_, b_, c_;
  std::vector<ProductRate> rates_;
};

}  // namespace

const std::vector<std::string>& product_mode_names() {
  static const std::vector<std::string> names = {"bf16", "tensor", "row", "block", "mx"};
  return names;
}

std::vector<ProductRate> product_rates(Device& device, const std::vector<LinearSite>& sites,
                                       int64_t rows, const std::vector<ProductMode>& modes,
                                       double seconds) {
  std::vector<ProductRate> rates;
  for (const LinearSite& site : sites) {
    if (site.block > 0) {
      continue;  // as in the first block
    }
    const std::string first = "layers.0.";
    const std::string layer =
        site.name.rfind(first, 0) == 0 ? site.name.substr(first.size()) : site.name;
    for (const Pass pass : {Pass::fprop, Pass::dgrad, Pass::wgrad}) {
      const GemmShape shape = shape_of(pass, site, rows);
      std::vector<ProductRate> some = ProductBench(device, layer, pass, shape, seconds).run(modes);
      rates.insert(rates.end(), some.begin(), some.end());
    }
  }
  return rates;
}

std::vector<ProductMode> parse_product_modes(const std::string& text) {
  const std::vector<std::string>& names = product_mode_names();
  std::vector<ProductMode> modes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const auto found = std::find(names.begin(), names.end(), text.substr(begin, comma - begin));
    if (found == names.end()) {
      throw ConfigError(fmt::format("--modes: expected some of {}, with commas, got '{}'",
                                    fmt::join(names, ", "), text));
    }
    modes.push_back(static_cast<ProductMode>(found - names.begin()));
    begin = comma + 1;
  }
  for (size_t i = 0; text.empty() && i < names.size(); ++i) {
    modes.push_back(static_cast<ProductMode>(i));
  }
  return modes;
}

}  // namespace fp8train
