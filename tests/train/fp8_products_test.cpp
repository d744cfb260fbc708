// What a library that lacks some FP8 products leaves of a plan: the shim refuses single ones. Only
// in the SHIM form.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "cublaslt_fake.h"
#include "cublaslt_faults.h"
#include "device/device.h"
#include "engine/dry_run.h"
#include "nn/linear_product.h"
#include "ops/gemm/gemm_support.h"
#include "support/small_llama.h"
#include "support/temp_dir.h"
#include "train/probed_products.h"

namespace fp8train {
namespace {

/// For a layer of 256 x 256 on 256 tokens: which of fprop, dgrad and wgrad are dequantized.
std::string dequantized(const DeviceTraits& traits, const std::string& plan) {
  EngineSettings settings = test::small_llama(plan);
  std::string found;
  for (LinearPlan& linear : plan_linears(settings.plan, linear_sites(settings.model))) {
    if (!linear.is_scaled()) {
      continue;
    }
    linear.site.in_features = linear.site.out_features = 256;
    const auto reasons = dequantized_because(traits, linear, 256);
    found.clear();
    for (size_t i = 0; i < reasons.size(); ++i) {
      found += reasons[i].empty() ? "" : std::string(i == 0 ? "f" : i == 1 ? "d" : "w");
    }
  }
  return found;
}

/// The traits of a device whose library refuses what `refused` says.
template <typename Refused>
DeviceTraits probed(const Refused& refused) {
  shim::answer_products([refused](const shim::AskedProduct& asked) {
    return refused(asked) ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  });
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  ops::probe_gemms(*device);
  shim::answer_products(nullptr);
  DeviceTraits traits = device->traits();
  traits.fp8_library = nullptr;  // it goes with the device
  return traits;
}

constexpr int32_t kWide = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
constexpr int32_t kNarrow = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;

TEST_CASE("a refused product that no plan uses costs no plan its FP8 products", "[cuda]") {
  const DeviceTraits traits = probed([](const shim::AskedProduct& asked) {
    const bool e5m2 = asked.a == CUDA_R_8F_E5M2 || asked.b == CUDA_R_8F_E5M2;
    return asked.a_scales == kWide || (asked.a_scales == kNarrow && e5m2);
  });
  for (const char* plan : {"te-blockwise", "deepseek-v3", "torchao-rowwise", "te-current"}) {
    CAPTURE(plan);
    CHECK(dequantized(traits, plan).empty());
  }
}

TEST_CASE("a refused product that a plan uses is dequantized, and no other", "[cuda]") {
  const DeviceTraits no_wgrad = probed([](const shim::AskedProduct& asked) {
    return asked.a_scales == kNarrow && asked.b_scales == kNarrow && asked.c == CUDA_R_32F;
  });
  CHECK(dequantized(no_wgrad, "te-blockwise") == "w");
  const DeviceTraits no_bf16 = probed([](const shim::AskedProduct& asked) {
    return asked.b_scales == kWide && asked.c == CUDA_R_16BF;
  });
  CHECK(dequantized(no_bf16, "te-blockwise") == "fd");
}

TEST_CASE("what the library refused is known to the next process without a trial", "[cuda]") {
  const test::TempDir folder;
  const auto refuses_rows = [](const shim::AskedProduct& asked) {
    return asked.a_scales == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
  };
  int trials = 0;
  const auto found = [&](const auto& answer) {
    shim::answer_products([&](const shim::AskedProduct& asked) {
      ++trials;
      return answer(asked);
    });
    const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
    find_products(*device, folder.path());
    shim::answer_products(nullptr);
    CHECK(device->traits().fp8_library != nullptr);  // is asked for shapes after either
    return device->traits().fp8_products;
  };
  const Fp8Products first = found(refuses_rows);
  CHECK_FALSE(first.has(ScalePair::row));
  CHECK(first.has(ScalePair::tensor));
  CHECK(trials > 50);
  trials = 0;
  const auto takes_all = [](const shim::AskedProduct&) { return CUBLAS_STATUS_SUCCESS; };
  CHECK(found(takes_all) == first);
  CHECK(trials == 0);
}

TEST_CASE("a plan whose products with one scale for each tensor are refused says so", "[cuda]") {
  shim::answer_products([](const shim::AskedProduct& asked) {
    const bool e5m2 = asked.a == CUDA_R_8F_E5M2 && asked.a_scales == 0;
    return e5m2 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  });
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  ops::probe_gemms(*device);
  shim::answer_products(nullptr);
  CHECK_THROWS_WITH(Engine(*device, test::small_llama("te-current")),
                    Catch::Contains("e5m2 x e4m3") && Catch::Contains("another plan"));
  CHECK_NOTHROW(Engine(*device, test::small_llama("bf16")));
}

/// Row scales with up to so many rows are refused while this lives.
struct FewRowsRefused {
  explicit FewRowsRefused(int64_t rows) { shim::faults() = {.few_rows = rows, .large_k = 1}; }
  ~FewRowsRefused() { shim::faults() = {}; }
};

TEST_CASE("shapes that the library refuses are dequantized within the plan of memory", "[cuda]") {
  const EngineSettings settings = test::small_llama("torchao-rowwise");
  const int64_t rows = settings.step.micro_batch_tokens();
  const auto fp8_flops = [&](Device& device) {
    ops::probe_gemms(device);
    return dry_run_step(settings, device).work.gemm_flops_8bit;
  };
  const double native = fp8_flops(*make_device(DeviceKind::cuda));
  const FewRowsRefused refused(rows);
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  CHECK(fp8_flops(*device) < native);
  for (const LinearPlan& linear : plan_linears(settings.plan, linear_sites(settings.model))) {
    const auto reasons = dequantized_because(device->traits(), linear, rows);
    const std::string_view expected =
        linear.is_scaled() ? "cuBLASLt refuses this shape with these types and scales on this GPU"
                           : "";
    CHECK(reasons[0] == expected);
    CHECK(dequantized_because(device->traits(), linear, rows + 16)[0].empty());
  }
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, *device).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  const uint64_t before = device->ledger().allocations();
  engine.step([] { return test::random_batch(1); }, 0, 1e-3, true);
  CHECK(std::isfinite(engine.step_loss().mean));
  CHECK(device->ledger().allocations() == before);
}

TEST_CASE("products that the library refuses only when a step runs do not end it", "[cuda]") {
  const EngineSettings settings = test::small_llama("torchao-rowwise");
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  ops::probe_gemms(*device);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, *device).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  shim::answer_products([](const shim::AskedProduct& asked) {
    return asked.a_scales == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
  });
  for (int64_t step = 0; step < 3; ++step) {  // the first one alone is not recorded
    engine.step([] { return test::random_batch(1); }, step, 1e-3, false);
  }
  shim::answer_products(nullptr);
  CHECK(std::isfinite(engine.step_loss().mean));
}

TEST_CASE("weight gradients in bf16 have products in every type of activations", "[cuda]") {
  const std::string plan = GENERATE("fp32", "fp16", "bf16", "te-delayed");
  CAPTURE(plan);
  EngineSettings settings = test::small_llama(plan);
  settings.plan.weight_gradient = plain(DType::bf16);
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, *device).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  engine.step([] { return test::random_batch(1); }, 0, 1e-3, true);
  CHECK(std::isfinite(engine.step_loss().mean));
}

}  // namespace
}  // namespace fp8train
