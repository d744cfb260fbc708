#include <fmt/format.h>

#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "bench/bench.h"
#include "bench/parts.h"
#include "choices.h"
#include "device/meta/op_log.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
#include "precision/linear_plan.h"

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

  /// Operands as layers have them in bf16: backward reads what forward has, transposed by the GEMM.
  void bf16() {
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

  /// One scale per tensor: E4M3 x E4M3, backward also E5M2 x E4M3.
  void tensor() {
    const TensorCodes b(*device_, DType::e4m3, shape_.n, shape_.k, false);
    b.cast(device_->stream(), b_, false);
    for (const DType type : {DType::e4m3, DType::e5m2}) {
      if (type == DType::e5m2 && pass_ == Pass::fprop) {
        continue;  // gradients only
      }
      const TensorCodes a(*device_, type, shape_.m, shape_.k, false);
      a.cast(device_->stream(), a_, false);
      for (const bool fast : {false, true}) {
        measure(operands_text({.a = type}), fast, [&](const Result& result) {
          ops::gemm(device_->stream(), {.a = a.operand(false),
                                        .b = b.operand(true),
                                        .c = c_,
                                        .beta = result.beta,
                                        .fast_accumulate = fast});
        });
      }
    }
  }

  void row() { blocks(per::row, per::row, {false, true}); }
  /// 1x128 x 128x128, and 1x128 x 1x128 for weight gradients.
  void block() {
    blocks(per::block_1x128, pass_ == Pass::wgrad ? per::block_1x128 : per::block_128x128, {false});
  }
  void mx() { blocks(per::block_1x32, per::block_1x32, {true}); }

  const std::vector<Json>& rates() const { return rates_; }

 private:
  using Work = std::function<void(const Result&)>;

  /// Each result of `work`.
  void measure(const std::string& operands, bool fast, const Work& work) {
    for (const Result& result : results_of(pass_)) {
      Json rate = named(operands, fast, result);
      try {
        const double seconds = device_seconds(
            *device_, [&] { work(result); }, seconds_);
        rate["gflops"] = shape_.flops() / seconds / 1e9;
      } catch (const DeviceError& error) {
        rate["error"] = error.what();
      }
      rates_.push_back(std::move(rate));
    }
  }

  Json named(const std::string& operands, bool fast, const Result& result) const {
    return {{"layer", layer_},      {"product", pass_name(pass_)}, {"shape", shape_.text()},
            {"operands", operands}, {"result", result.name},       {"fast_accumulate", fast}};
  }

  void blocks(ScaleBlock of_a, ScaleBlock of_b, const std::vector<bool>& accumulations) {
    const std::string operands = fmt::format("e4m3 {} x e4m3 {}", name_of(of_a), name_of(of_b));
    const BlockwiseCodes a(*device_, blockwise_role_format(of_a), shape_.m, shape_.k);
    const BlockwiseCodes b(*device_, blockwise_role_format(of_b), shape_.n, shape_.k);
    a.cast(device_->stream(), a_);
    b.cast(device_->stream(), b_);
    ops::Gemm call = {.a = a.operand(false), .b = b.operand(true), .c = c_};
    for (const bool fast : accumulations) {
      call.fast_accumulate = fast;
      const auto support = ops::gemm_support(device_->traits(), call);
      if (!support.native) {
        for (const Result& result : results_of(pass_)) {
          rates_.push_back(named(operands, fast, result));
          rates_.back()["dequantized"] = support.reason;
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
  std::vector<Json> rates_;
};

/// Which operands are measured.
using ProductMode = void (ProductBench::*)();
const Choices<ProductMode> kModes = {{"bf16", &ProductBench::bf16},
                                     {"tensor", &ProductBench::tensor},
                                     {"row", &ProductBench::row},
                                     {"block", &ProductBench::block},
                                     {"mx", &ProductBench::mx}};

/// The three products of each site in every way of the modes. Sites of several layers that have the
/// same name within a layer count once.
Json measure_products(Device& device, const BenchOptions& options) {
  std::vector<ProductMode> modes;
  for (const std::string& name : split(options.modes, ',')) {
    modes.push_back(choose("--modes", name, kModes));
  }
  const std::vector<LinearSite> sites = linear_sites(model_of(options.step));
  std::vector<Json> results;
  for (const LinearSite& site : sites) {
    if (site.block > 0) {
      continue;  // as in the first block
    }
    const std::string first = "layers.0.";
    const std::string layer =
        site.name.rfind(first, 0) == 0 ? site.name.substr(first.size()) : site.name;
    for (const Pass pass : {Pass::fprop, Pass::dgrad, Pass::wgrad}) {
      const GemmShape shape = shape_of(pass, site, options.tokens);
      ProductBench bench(device, layer, pass, shape, options.seconds / 30);
      for (const ProductMode mode : modes) {
        (bench.*mode)();
      }
      results.insert(results.end(), bench.rates().begin(), bench.rates().end());
    }
  }
  return {{"preset", options.step.preset}, {"tokens", options.tokens}, {"results", results}};
}

void add_products_options(Arguments part, BenchOptions& options) {
  part.option("--preset", options.step.preset, "Model preset; `fp8train config list`");
  part.option("--vocabulary", options.step.vocabulary, 0, "0: the preset's, or 65");
  part.option("--tokens", options.tokens, 1, "Tokens of a micro-batch");
  part.option("--modes", options.modes, "How operands are scaled, with commas");
}

}  // namespace

const BenchPart kProductsBench = {
    .name = "products",
    .help = "The GEMMs of a model's layers in each type, accumulation and scale mode",
    .add_options = add_products_options,
    .measure = measure_products,
    .is_tuned = true};

}  // namespace fp8train
