// The choice of algorithms by measuring, on the fake cuBLASLt, which knows which is the fastest.
// Only in the SHIM form.

#include <catch2/catch.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "cublaslt_fake.h"
#include "cublaslt_faults.h"
#include "ops/cuda/scaled_gemm_support.h"
#include "ops/cuda/shim_chip.h"
#include "ops/gemm/gemm_tuning_cuda.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

constexpr int64_t kSize = 32;
constexpr int64_t kLong = 80;  // K with a tail of an algorithm's tile

/// A device that tunes with the files of `folder`, and a product on it.
class Tuned {
 public:
  explicit Tuned(const std::filesystem::path& folder) {
    ops::tune_gemms(*device_, folder.string());
    fill_zero(*device_, a_);
    fill_zero(*device_, b_);
  }

  /// c = a b + beta * c, with c all `start`: the algorithms that ran, and c's first element.
  std::pair<std::vector<int>, float> multiply(float beta, float start) {
    const std::vector<float> values(kSize * kSize, start);
    copy_from_host(*device_, c_, values.data());
    shim::take_algorithms();
    ops::gemm(device_->stream(), {.a = {a_.view()}, .b = {b_.view()}, .c = c_, .beta = beta});
    return {shim::take_algorithms(), to_host_f32(*device_, c_)[0]};
  }

 private:
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cuda);
  Tensor a_{*device_, DType::f32, {kSize, kSize}, MemoryCategory::workspace};
  Tensor b_{*device_, DType::f32, {kSize, kSize}, MemoryCategory::workspace};
  Tensor c_{*device_, DType::f32, {kSize, kSize}, MemoryCategory::workspace};
};

std::filesystem::path only_file(const std::filesystem::path& folder) {
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    REQUIRE(found.empty());
    found = entry.path();
  }
  return found;
}

}  // namespace

TEST_CASE("tuning takes the fastest algorithm that runs, and keeps it", "[cuda][tuning]") {
  const TempDir folder;
  Tuned first(folder.path());
  const auto [tried, sum] = first.multiply(1.0F, 5.0F);
  CHECK(sum == 5.0F);  // added to c once only
  REQUIRE(tried.size() > 4);
  CHECK(tried.back() == 3);
  CHECK(std::find(tried.begin(), tried.end(), 4) == tried.end());
  CHECK(first.multiply(1.0F, 5.0F).first == std::vector<int>{3});
  CHECK_THAT(only_file(folder.path()).filename().string(),
             Catch::Contains("sm90") && Catch::Contains("cublaslt130100"));

  Tuned second(folder.path());
  CHECK(second.multiply(1.0F, 5.0F).first == std::vector<int>{3});  // from the file
  CHECK(second.multiply(0.0F, 5.0F).first.size() > 4);              // another product
  CHECK(second.multiply(0.0F, 5.0F).second == 0.0F);
}

TEST_CASE("a damaged file of choices is measured again", "[cuda][tuning]") {
  const TempDir folder;
  Tuned(folder.path()).multiply(0.0F, 1.0F);
  const std::filesystem::path file = only_file(folder.path());
  const std::string good = read_text_file(file, 1 << 20);
  std::string foreign = good;
  foreign.replace(foreign.find('\t') + 1 + 3 * 16, 2, "77");  // no algorithm of this library
  for (const std::string& text :
       {good.substr(0, good.size() / 2), std::string("x\ty\n\n"), foreign}) {
    write_file_atomically(file, text);
    const std::vector<int> tried = Tuned(folder.path()).multiply(0.0F, 1.0F).first;
    CHECK(tried.size() > 4);
    CHECK(tried.back() == 3);
    CHECK_THAT(read_text_file(file, 1 << 20), Catch::Contains(good.substr(0, good.size() - 1)));
  }
}

TEST_CASE("a folder that cannot be used is an error that names it", "[cuda][tuning]") {
  const TempDir folder;
  write_file_atomically(folder / "file", "");
  CHECK_THROWS_WITH(Tuned(folder / "file"), Catch::Contains("FP8TRAIN_CACHE_DIR"));
  const auto cpu = make_device(DeviceKind::cpu);
  CHECK_NOTHROW(ops::tune_gemms(*cpu, (folder / "file").string()));
}

TEST_CASE("tuning leaves out an algorithm whose result is another, and names it",
          "[cuda][tuning]") {
  const TempDir folder;
  const auto device = make_device(DeviceKind::cuda);
  ops::tune_gemms(*device, (folder / "cache").string());
  Side side(*device);
  const View a = side.put(Array(DType::bf16, {kSize, kLong}, random_values(kSize * kLong, 1)));
  const View b = side.put(Array(DType::bf16, {kSize, kLong}, random_values(kSize * kLong, 2)));
  const View c = side.space(DType::bf16, {kSize, kSize});
  shim::faults().drops_tail = true;
  shim::take_algorithms();
  open_log_file((folder / "run.log").string());
  ops::gemm(side.stream(), {.a = {a}, .b = {b, true}, .c = c});
  shim::faults() = {};
  CHECK(shim::take_algorithms().back() == 1);
  CHECK_THAT(read_text_file(folder / "run.log", 1 << 16),
             Catch::Contains("algorithm 3, split-K 4, reduction 2 differs"));
}

TEST_CASE("a product that no suggested algorithm runs is refused with tuning as without",
          "[cuda][tuning]") {
  const TempDir folder;
  const Chip chip(90);
  ops::probe_gemms(*chip.device);
  ops::tune_gemms(*chip.device, (folder / "cache").string());
  shim::answer_products([](const shim::AskedProduct& asked) {
    const bool refused =
        asked.a_scales == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F || asked.a == CUDA_R_32F;
    return refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  });
  const TensorFormat row = blockwise_format(DType::e4m3, per::row);
  ScaledProduct product({row, row}, {132, 48, 160}, DType::bf16, false);
  Side side(*chip.device);
  const Array expected = on_cpu([&](Side& cpu) { return product.run_dequantized(cpu); });
  CHECK(worst_difference(product.run(side), expected, product.rounding(), product.tolerance()) <=
        1);
  const View plain = side.put(Array(DType::f32, {kSize, kSize}, random_values(kSize * kSize, 1)));
  const View c = side.space(DType::f32, {kSize, kSize});
  CHECK_THROWS_AS(ops::gemm(side.stream(), {.a = {plain}, .b = {plain, true}, .c = c}),
                  DeviceError);
}

TEST_CASE("results of one product may differ by less than a tail of K", "[cuda][tuning]") {
  using ops::cuda::difference_bound;
  CHECK(difference_bound(DType::bf16, DType::f32, false, 8192) < 3e-4);
  CHECK(difference_bound(DType::bf16, DType::bf16, false, 8192) < 5e-3);
  CHECK(difference_bound(DType::e4m3, DType::bf16, false, 8192) < 6e-3);
  CHECK(difference_bound(DType::e4m3, DType::bf16, true, 8192) < std::sqrt(16.0 / 8192));
}

}  // namespace fp8train::test
