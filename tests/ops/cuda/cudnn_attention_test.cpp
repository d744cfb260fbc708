// Attention through cuDNN: on a GPU the library itself, where it is installed; in the host shim a
// fake that enforces its rules and computes through the cpu's operations, so that what is tested
// there is what our side does: which cases go to cuDNN, layouts, plans and workspace.

#include <catch2/catch.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention_cases.h"
#include "support/environment.h"
#include "support/temp_dir.h"

#if defined(FP8TRAIN_CUDA_SHIM)
#include "cudnn_fake.h"
#endif

namespace fp8train::test {
namespace {

constexpr const char* kVariable = "FP8TRAIN_CUDA_ATTENTION";
constexpr FloatType kHalfTypes[] = {kFloatTypes[1], kFloatTypes[2]};

/// A device whose attention is chosen by the variable; it is read when attention is first used.
struct ChosenDevice {
  explicit ChosenDevice(const char* choice) {
    const EnvironmentScope scope(kVariable, choice);
    device = make_device(DeviceKind::cuda);
    kernels = ops::attention_kernels(device->stream());
  }
  std::unique_ptr<Device> device;
  std::string kernels;
};

template <typename Run>
auto on(const ChosenDevice& chosen, Run&& run) {
  Side side(*chosen.device);
  return run(side);
}

/// Its backward pass has the same bits every time; by default cuDNN's sums with atomics.
Problem repeatable(Problem p) {
  p.deterministic = true;
  return p;
}

bool no_cudnn() {
  try {
    const ChosenDevice chosen("cudnn");
    return false;
  } catch (const ConfigError& error) {
    WARN("not run: " << error.what());
    return true;
  }
}

// Tolerances as in attention_test.cpp: cuDNN too takes rounded probabilities and rounded gradients
// of scores to its tensor cores. (The fake gives the cpu's bits.)
void check_both(const ChosenDevice& cudnn, const Problem& p, const FloatType& type) {
  INFO(p.text() << ", " << name_of(type.dtype));
  const Host host(p, type.dtype);
  const auto run_forward = [&](Side& side) { return forward(side, p, host, true); };
  const Forward want = on_cpu(run_forward);
  const Forward got = on(cudnn, run_forward);
  CHECK(worst_difference(got.out, want.out, 2 * type.rounding, 5 * type.rounding) <= 1);
  CHECK(worst_difference(got.log_sum_exp, want.log_sum_exp, 0, 0x1p-16) <= 1);
  const Forward bare = on(cudnn, [&](Side& side) { return forward(side, p, host, false); });
  CHECK(worst_difference(bare.out, want.out, 2 * type.rounding, 5 * type.rounding) <= 1);
  const auto group = static_cast<double>(p.heads / p.kv_heads);
  for (const Problem& each : {p, repeatable(p)}) {
    const auto run_backward = [&](Side& side) { return backward(side, each, host, want); };
    const Array gradients = on(cudnn, run_backward);
    CHECK(worst_difference(gradients, on_cpu(run_backward), 2 * type.rounding,
                           8 * group * type.rounding) <= 1);
    CHECK((!each.deterministic || same_values(gradients, on(cudnn, run_backward))));
  }
}

TEST_CASE("cuDNN's attention and its gradients match the cpu", "[cuda][attention][cudnn]") {
  if (no_cudnn()) {
    return;
  }
  const ChosenDevice cudnn("cudnn");
  CHECK(cudnn.kernels.find("cuDNN") == 0);
  const Problem problems[] = {{2, 24, 24, 2, 1, 16},    {1, 33, 33, 2, 2, 32},
                              {2, 64, 64, 4, 1, 64},    {1, 70, 70, 4, 2, 80},
                              {1, 130, 130, 2, 1, 128}, {1, 2, 2, 1, 1, 256}};
  for (const FloatType& type : kHalfTypes) {
    for (const Problem& p : problems) {
      check_both(cudnn, p, type);
    }
  }
}

TEST_CASE("cuDNN and our kernels take over each other's log-sum-exp", "[cuda][attention][cudnn]") {
  if (no_cudnn()) {
    return;
  }
  const ChosenDevice cudnn("cudnn");
  const Problem p = {1, 70, 70, 4, 2, 64};
  const FloatType type = kHalfTypes[0];
  const Host host(p, type.dtype);
  const auto run_forward = [&](Side& side) { return forward(side, p, host, true); };
  const Forward own = on_cuda(run_forward);
  const Forward theirs = on(cudnn, run_forward);
  const Array want = on_cpu([&](Side& side) { return backward(side, p, host, own); });
  const Array after_own = on(cudnn, [&](Side& side) { return backward(side, p, host, own); });
  const Array after_cudnn = on_cuda([&](Side& side) { return backward(side, p, host, theirs); });
  // As in check_both(); out differs by one more rounding, which moves delta.
  CHECK(worst_difference(after_own, want, 2 * type.rounding, 24 * type.rounding) <= 1);
  CHECK(worst_difference(after_cudnn, want, 2 * type.rounding, 24 * type.rounding) <= 1);
}

TEST_CASE("FP8TRAIN_CUDA_ATTENTION takes own and cudnn", "[cuda][attention][cudnn]") {
  CHECK(ChosenDevice("own").kernels == "own kernels (FP8TRAIN_CUDA_ATTENTION=own), deterministic");
  CHECK_THROWS_AS(ChosenDevice("flash"), ConfigError);
}

#if defined(FP8TRAIN_CUDA_SHIM)

TEST_CASE("what cuDNN does not take runs on our kernels", "[cuda][attention][cudnn]") {
  struct Case {
    Problem problem;
    DType dtype;
  };
  // fp32; sequences shorter than their memory, as in a KV cache; queries at its end; rows off the
  // 16-byte grid; a head dimension that is no multiple of 8; a single query.
  const Case cases[] = {
      {{1, 24, 24, 2, 1, 16}, DType::f32},  {{1, 24, 24, 2, 1, 16, 3}, DType::bf16},
      {{1, 4, 24, 2, 1, 16}, DType::bf16},  {{1, 24, 24, 2, 1, 16, 0, 4}, DType::bf16},
      {{1, 24, 24, 2, 1, 20}, DType::bf16}, {{1, 1, 1, 2, 1, 16}, DType::bf16}};
  const ChosenDevice cudnn("cudnn");
  for (const Case& c : cases) {
    INFO(c.problem.text() << ", " << name_of(c.dtype));
    const Host host(c.problem, c.dtype);
    const auto run = [&](Side& side) { return forward(side, c.problem, host, true); };
    const uint64_t before = shim::sdpa_runs();
    CHECK(same_values(on(cudnn, run).out, on_cuda(run).out));
    CHECK(shim::sdpa_runs() == before);
  }
}

TEST_CASE("a plan is made once for each shape", "[cuda][attention][cudnn]") {
  const ChosenDevice cudnn(nullptr);
  const uint64_t plans = shim::sdpa_plans();
  const uint64_t runs = shim::sdpa_runs();
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const int64_t length : {8, 9}) {
      const Problem p = {1, length, length, 2, 1, 16};
      const Host host(p, DType::bf16);
      const Forward stored = on(cudnn, [&](Side& side) { return forward(side, p, host, true); });
      on(cudnn, [&](Side& side) { return forward(side, p, host, false); });
      on(cudnn, [&](Side& side) { return backward(side, p, host, stored); });
    }
  }
  CHECK(shim::sdpa_plans() == plans + 6);
  CHECK(shim::sdpa_runs() == runs + 12);
}

TEST_CASE("without cuDNN one line says that slower kernels run", "[cuda][attention][cudnn]") {
  const TempDir folder;
  open_log_file((folder / "run.log").string());
  shim::hide_sdpa(true);
  const ChosenDevice chosen(nullptr);
  CHECK(chosen.kernels == "own kernels (cuDNN is hidden by the test), deterministic");
  ops::attention_kernels(chosen.device->stream());
  CHECK_THROWS_WITH(ChosenDevice("cudnn"), Catch::Contains("cuDNN is hidden by the test"));
  shim::hide_sdpa(false);
  CHECK_THAT(read_text_file(folder / "run.log", 1 << 16),
             Catch::EndsWith("attention runs on our own kernels, which are slower than cuDNN's: "
                             "cuDNN is hidden by the test\n"));
  const std::string log = read_text_file(folder / "run.log", 1 << 16);
  CHECK(std::count(log.begin(), log.end(), '\n') == 1);
}

/// What backward plans say that they need, for the length of a scope.
struct WorkspaceScope {
  explicit WorkspaceScope(size_t bytes) { shim::set_sdpa_workspace(bytes); }
  ~WorkspaceScope() { shim::set_sdpa_workspace(4096); }
};

TEST_CASE("the scratch of backward is the workspace of cuDNN's plan", "[cuda][attention][cudnn]") {
  constexpr size_t kBytes = 100'001;
  const WorkspaceScope scope(kBytes);
  const ChosenDevice cudnn("cudnn");
  const ChosenDevice own("own");
  const Problem p = {1, 8, 8, 2, 1, 16};
  const auto scratch = [&](const Stream& stream, DType dtype) {
    alignas(16) static char memory[16];
    const ops::HeadsView view = {memory, dtype, p.stride(), p.queries};
    return ops::attention_backward_scratch(stream, {.shape = p.shape(),
                                                    .q = view,
                                                    .k = view,
                                                    .v = view,
                                                    .out = view,
                                                    .dout = view,
                                                    .dq = view,
                                                    .dk = view,
                                                    .dv = view});
  };
  const uint64_t plans = shim::sdpa_plans();
  const std::unique_ptr<Device> meta = make_meta_device(*cudnn.device);
  CHECK(scratch(meta->stream(), DType::bf16) == 25'001);  // fp32 elements, rounded up
  CHECK(scratch(cudnn.device->stream(), DType::bf16) == 25'001);
  CHECK(shim::sdpa_plans() == plans + 1);
  const int64_t ours = ops::attention_backward_scratch(p.shape());
  CHECK(scratch(cudnn.device->stream(), DType::f32) == ours);
  CHECK(scratch(own.device->stream(), DType::bf16) == ours);
  CHECK(scratch(make_meta_device(cuda_traits(90))->stream(), DType::bf16) == ours);
  const Host host(p, DType::bf16);
  const Forward stored = on_cpu([&](Side& side) { return forward(side, p, host, true); });
  const auto run = [&](Side& side) { return backward(side, repeatable(p), host, stored); };
  const size_t before = cudnn.device->ledger().total();
  CHECK(same_values(on(cudnn, run), on_cpu(run)));
  CHECK(cudnn.device->ledger().total() == before);
}

/// The scratch of a backward pass, which makes its plan.
int64_t planned_scratch(const ChosenDevice& chosen, const Problem& p, bool deterministic) {
  alignas(16) static char memory[16];
  const ops::HeadsView view = {memory, DType::bf16, p.stride(), p.queries};
  const Problem problem = deterministic ? repeatable(p) : p;
  return ops::attention_backward_scratch(chosen.device->stream(), {.shape = problem.shape(),
                                                                   .q = view,
                                                                   .k = view,
                                                                   .v = view,
                                                                   .out = view,
                                                                   .dout = view,
                                                                   .dq = view,
                                                                   .dk = view,
                                                                   .dv = view});
}

TEST_CASE("a deterministic backward pass has a plan and a workspace of its own",
          "[cuda][attention][cudnn]") {
  const WorkspaceScope scope(100'000);
  const ChosenDevice cudnn("cudnn");
  const Problem p = {3, 8, 8, 2, 1, 16};
  const uint64_t plans = shim::sdpa_plans();
  const uint64_t deterministic = shim::deterministic_sdpa_plans();
  CHECK(planned_scratch(cudnn, p, false) == 25'000);
  CHECK(shim::deterministic_sdpa_plans() == deterministic);
  CHECK(planned_scratch(cudnn, p, true) == 25'000 + 2 * 3 * 2 * 8 * 8 / 4);
  CHECK(shim::deterministic_sdpa_plans() == deterministic + 1);
  CHECK(planned_scratch(cudnn, p, true) == 25'000 + 2 * 3 * 2 * 8 * 8 / 4);
  CHECK(shim::sdpa_plans() == plans + 2);
}

TEST_CASE("the kernels of attention are described with what backward's plans show",
          "[cuda][attention][cudnn]") {
  const Problem p = {1, 8, 8, 2, 1, 16};
  const auto described = [&p](bool deterministic) {
    const ChosenDevice chosen(nullptr);
    planned_scratch(chosen, p, deterministic);
    planned_scratch(chosen, {2, 8, 8, 2, 1, 16}, deterministic);
    return ops::attention_kernels(chosen.device->stream());
  };
  const std::string cudnn = "cuDNN 0.0.0 (fake) in bf16 and fp16";
  CHECK(described(true) == cudnn + "; deterministic");
  CHECK(described(false) == cudnn +
                                "; the last bits of its gradients vary from run to run "
                                "(training.deterministic: false)");
  const WorkspaceScope scope((size_t{1} << 30) + 1);
  CHECK_THAT(described(true), Catch::Contains("; own kernels for backward of batch 1, length 8") &&
                                  Catch::Contains("(training.deterministic: false takes less)"));
  CHECK_THAT(described(false), !Catch::Contains("takes less"));
}

TEST_CASE("a workspace beyond an eighth of the memory is refused", "[cuda][attention][cudnn]") {
  const WorkspaceScope scope((size_t{1} << 30) + 1);  // the shim's GPU has 8 GiB
  const Problem p = {1, 8, 8, 2, 1, 16};
  const Host host(p, DType::bf16);
  const Forward stored = on_cpu([&](Side& side) { return forward(side, p, host, true); });
  const auto run = [&](Side& side) { return backward(side, p, host, stored); };
  const uint64_t before = shim::sdpa_runs();
  CHECK(same_values(on(ChosenDevice(nullptr), run), on_cuda(run)));
  CHECK(shim::sdpa_runs() == before);
  CHECK_THROWS_WITH(on(ChosenDevice("cudnn"), run), Catch::Contains("eighth of the GPU's memory"));
}

#endif

}  // namespace
}  // namespace fp8train::test
