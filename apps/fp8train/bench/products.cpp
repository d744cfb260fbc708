#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "bench/bench.h"
#include "bench/exact_product.h"
#include "bench/parts.h"
#include "choices.h"
#include "device/meta/op_log.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
#include "ops/pointwise/elementwise.h"
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
constexpr Result kResults[] = {
    {DType::bf16, 0.0F, "bf16"}, {DType::f32, 0.0F, "fp32"}, {DType::f32, 1.0F, "fp32 +="}};
View with_shape(View view, const Shape& shape) {
  view.shape = shape;
  return view;
}

/// One product of one layer in every way of some modes: timed, or run once and compared with the
/// exact result.
class ProductBench {
 public:
  /// `seconds`: 0: products are compared.
  ProductBench(Device& device, std::string layer, Pass pass, const GemmShape& shape, double seconds)
      : device_(&device),
        layer_(std::move(layer)),
        pass_(pass),
        shape_(shape),
        seconds_(seconds),
        a_(matrix(shape.m)),
        b_(matrix(shape.n)),
        c_(device, pass == Pass::wgrad ? DType::f32 : DType::bf16, {shape.m, shape.n},
           MemoryCategory::workspace) {
    if (seconds == 0) {
      exact_.emplace(shape);
      exact_->a().fill(device, a_);
      exact_->b().fill(device, b_);
    }
  }

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
    measure("bf16", {.a = a, .b = b, .c = c_, .fast_accumulate = false});
  }

  /// One scale per tensor: E4M3 x E4M3, backward also E5M2 x E4M3.
  void tensor() {
    const BenchCodes b =
        codes_of(b_, codes_format(per::tensor, DType::e4m3, ScalePolicy::delayed), 2.0F);
    for (const DType type : {DType::e4m3, DType::e5m2}) {
      if (type == DType::e5m2 && pass_ == Pass::fprop) {
        continue;  // gradients only
      }
      const BenchCodes a =
          codes_of(a_, codes_format(per::tensor, type, ScalePolicy::delayed), 8.0F);
      for (const bool fast : {false, true}) {
        measure(operands_text({.a = type}),
                {.a = a.operand(false), .b = b.operand(true), .c = c_, .fast_accumulate = fast});
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
  /// [rows, K], to be filled where results are compared.
  Tensor matrix(int64_t rows) const {
    return seconds_ > 0
               ? random_matrix(*device_, DType::bf16, rows, shape_.k)
               : Tensor(*device_, DType::bf16, {rows, shape_.k}, MemoryCategory::workspace);
  }

  /// Each result of a product, whose c and beta are set here.
  void measure(const std::string& operands, ops::Gemm call) {
    const size_t results = pass_ == Pass::wgrad ? std::size(kResults) : 1;
    for (const Result& result : std::span(kResults).first(results)) {
      Json rate = named(operands, call.fast_accumulate, result);
      call.c = c_;
      call.c.dtype = result.dtype;
      call.beta = result.beta;
      const ops::GemmSupport support = ops::gemm_support(device_->traits(), call);
      if (support.dequantized) {
        rate["dequantized"] = support.reason;
      }
      try {
        if (exact_) {
          compare(call, rate);
        } else if (!support.dequantized) {
          const double seconds = device_seconds(
              *device_, [&] { ops::gemm(device_->stream(), call); }, seconds_);
          rate["gflops"] = shape_.flops() / seconds / 1e9;
        }
      } catch (const DeviceError& error) {
        rate[exact_ ? "refused" : "error"] = error.what();
      }
      rates_.push_back(std::move(rate));
    }
  }

  void compare(ops::Gemm call, Json& rate) {
    const auto bytes = static_cast<int64_t>(ops::gemm_scratch_bytes(device_->traits(), call));
    const Tensor scratch(*device_, DType::u8, {bytes}, MemoryCategory::workspace);
    call.scratch = scratch;
    rate["error"] = exact_->error(*device_, call);
    rate["bound"] = ExactProduct::bound(call.c.dtype);
  }

  /// Where results are compared, the scale of a tensor is `scale`, and others are powers of two.
  BenchCodes codes_of(const Tensor& x, TensorFormat format, float scale = 1.0F) const {
    const bool by_tensor = format.block == per::tensor;
    const bool rounded = exact_ && !by_tensor && format.scale_type == ScaleType::f32;
    format.scale_type = rounded ? ScaleType::pow2 : format.scale_type;
    BenchCodes codes(*device_, format, x.view().shape[0], shape_.k);
    if (exact_ && by_tensor) {
      float* const state = codes.state.view().as<float>();
      ops::fill(device_->stream(), {state, DType::f32, {1}}, scale);
      ops::fill(device_->stream(), {state + 1, DType::f32, {1}}, 1.0F / scale);
    }
    codes.cast(device_->stream(), x);
    return codes;
  }

  Json named(const std::string& operands, bool fast, const Result& result) const {
    return {{"layer", layer_},      {"product", pass_name(pass_)}, {"shape", shape_.text()},
            {"operands", operands}, {"result", result.name},       {"fast_accumulate", fast}};
  }

  void blocks(ScaleBlock of_a, ScaleBlock of_b, const std::vector<bool>& accumulations) {
    const std::string operands = fmt::format("e4m3 {} x e4m3 {}", name_of(of_a), name_of(of_b));
    const BenchCodes a = codes_of(a_, codes_format(of_a));
    const BenchCodes b = codes_of(b_, codes_format(of_b));
    ops::Gemm call = {.a = a.operand(false), .b = b.operand(true), .c = c_};
    for (const bool fast : accumulations) {
      call.fast_accumulate = fast;
      measure(operands, call);
    }
  }

  Device* device_;
  std::string layer_;
  Pass pass_;
  GemmShape shape_;
  double seconds_;
  Tensor a_, b_, c_;
  std::optional<ExactProduct> exact_;
  std::vector<Json> rates_;
};

/// Which operands are measured.
using ProductMode = void (ProductBench::*)();
const Choices<ProductMode> kModes = {{"bf16", &ProductBench::bf16},
                                     {"tensor", &ProductBench::tensor},
                                     {"row", &ProductBench::row},
                                     {"block", &ProductBench::block},
                                     {"mx", &ProductBench::mx}};

/// A product of a model, and extents of K that leave a piece over of the tiles, blocks and groups
/// of four scales that a library reads: 16 and one, two and three blocks of 128 less than a
/// multiple of 512.
struct NamedProduct {
  std::string layer;
  Pass pass;
  GemmShape shape;
};

/// The three products of each site. Sites of several layers that have the same name within a layer
/// count once.
std::vector<NamedProduct> products_of_model(const BenchOptions& options) {
  std::vector<NamedProduct> products;
  const std::vector<LinearSite> sites = linear_sites(model_of(options.step));
  for (const LinearSite& site : sites) {
    if (site.block > 0) {
      continue;  // as in the first block
    }
    const std::string first = "layers.0.";
    const std::string layer =
        site.name.rfind(first, 0) == 0 ? site.name.substr(first.size()) : site.name;
    for (const Pass pass : {Pass::fprop, Pass::dgrad, Pass::wgrad}) {
      products.push_back({layer, pass, shape_of(pass, site, options.tokens)});
    }
  }
  if (options.verify) {
    for (const int64_t missing : {16, 128, 256, 384}) {
      const int64_t k = round_up(options.tokens, int64_t{512}) - missing;
      for (const Pass pass : {Pass::fprop, Pass::wgrad}) {
        products.push_back({"tail", pass, {options.tokens, sites.front().in_features, k}});
      }
    }
  }
  return products;
}

/// Every product in every way of the modes.
Json measure_products(Device& device, const BenchOptions& options) {
  std::vector<ProductMode> modes;
  for (const std::string& name : split(options.modes, ',')) {
    modes.push_back(choose("--modes", name, kModes));
  }
  std::vector<Json> results;
  for (const NamedProduct& product : products_of_model(options)) {
    ProductBench bench(device, product.layer, product.pass, product.shape,
                       options.verify ? 0.0 : options.seconds / 30);
    for (const ProductMode mode : modes) {
      (bench.*mode)();
    }
    results.insert(results.end(), bench.rates().begin(), bench.rates().end());
  }
  Json report = {{"preset", options.step.preset}, {"tokens", options.tokens}};
  if (options.verify) {
    report["wrong"] = std::count_if(results.begin(), results.end(), [](const Json& result) {
      return result.contains("refused") ||
             !(result["error"].get<double>() <= result["bound"].get<double>());  // or it is NaN
    });
  }
  report["results"] = results;
  return report;
}

void add_products_options(Arguments part, BenchOptions& options) {
  part.option("--preset", options.step.preset, "Model preset; `fp8train config list`");
  part.option("--vocabulary", options.step.vocabulary, 0, "0: the preset's, or 65");
  part.option("--tokens", options.tokens, 1, "Tokens of a micro-batch");
  part.option("--modes", options.modes, "How operands are scaled, with commas");
  part.flag("--verify", options.verify,
            "Run each product once and compare it with the exact result; exit code 1 if one is "
            "wrong");
}

}  // namespace

const BenchPart kProductsBench = {
    .name = "products",
    .help = "The GEMMs of a model's layers in each type, accumulation and scale mode",
    .example = "fp8train bench products --preset llama-1b --modes bf16,block",
    .add_options = add_products_options,
    .measure = measure_products,
    .is_tuned = true};

}  // namespace fp8train
