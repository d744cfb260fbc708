#include "cudnn_fake.h"

#include <cstring>

#include "base/error.h"
#include "ops/attention/cudnn_sdpa.h"
#include "ops/dispatch/op_table.h"
#include "submit.h"

namespace fp8train {
namespace {

using ops::cuda::SdpaLayout;
using ops::cuda::SdpaPointers;
using ops::cuda::SdpaProblem;

constexpr int64_t kStep = 8;  // elements of two bytes that are read at once
constexpr size_t kForwardWorkspace = 256;

thread_local uint64_t plan_count = 0;
thread_local uint64_t deterministic_count = 0;
thread_local uint64_t run_count = 0;
size_t backward_workspace = 4096;
bool is_hidden = false;

/// Empty, or why the library does not take the problem.
std::string refusal(const SdpaProblem& problem) {
  const ops::AttentionShape& shape = problem.shape;
  if (problem.dtype != DType::bf16 && problem.dtype != DType::f16) {
    return "only bf16 and fp16";
  }
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256) {
    return "hidden_dim should be a multiple of 8 and at most 256";
  }
  if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
    return "kv heads must divide heads";
  }
  if (shape.query_length != shape.key_length || shape.query_length < 2) {
    return "s_q = s_kv = 1 is not supported";
  }
  std::vector<std::pair<SdpaLayout, int64_t>> layouts = {{problem.q, shape.heads},
                                                         {problem.k, shape.kv_heads},
                                                         {problem.v, shape.kv_heads},
                                                         {problem.out, shape.heads}};
  if (problem.backward) {
    layouts.insert(layouts.end(), {{problem.dout, shape.heads},
                                   {problem.dq, shape.heads},
                                   {problem.dk, shape.kv_heads},
                                   {problem.dv, shape.kv_heads}});
  }
  for (const auto& [layout, heads] : layouts) {
    if (layout.row_stride % kStep != 0 || layout.batch_stride % kStep != 0) {
      return "a stride is not a multiple of 16 bytes";
    }
    if (layout.row_stride < heads * shape.head_dim ||
        layout.batch_stride < shape.query_length * layout.row_stride) {
      return "a tensor overlaps itself";
    }
  }
  return problem.backward && problem.keeps_log_sum_exp ? "backward writes no statistics" : "";
}

void insist(bool condition, const char* what) {
  if (!condition) {
    throw DeviceError(std::string("attention in cuDNN: ") + what);
  }
}

/// Of half of all runs, without a period.
bool is_other_order(uint64_t run) {
  return (run * 0x9E3779B97F4A7C15) >> 63 != 0;
}

bool on_boundary(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

class FakePlan final : public ops::cuda::SdpaPlan {
 public:
  FakePlan(const SdpaProblem& problem, cudaStream_t stream) : problem_(problem), stream_(stream) {}

  /// The deterministic algorithm stores the gradients of all scores, as on sm_90.
  size_t workspace_bytes() const override {
    const ops::AttentionShape& shape = problem_.shape;
    const int64_t scores = shape.batch * shape.heads * shape.query_length * shape.key_length;
    const size_t more = shape.deterministic ? 2 * static_cast<size_t>(scores) : 0;
    return problem_.backward ? bytes_ + more : kForwardWorkspace;
  }

  void run(const SdpaPointers& p, void* workspace) override {
    insist(on_boundary(workspace, 256), "the workspace must be 256-byte aligned");
    for (const void* pointer : {p.q, p.k, p.v, p.out}) {
      insist(pointer != nullptr && on_boundary(pointer, 16), "a pointer is missing or unaligned");
    }
    for (const void* pointer : {p.dout, p.dq, p.dk, p.dv}) {
      insist((pointer != nullptr) == problem_.backward && on_boundary(pointer, 16),
             "a gradient is missing, not asked for or unaligned");
    }
    insist((p.log_sum_exp != nullptr) == (problem_.backward || problem_.keeps_log_sum_exp),
           "the statistics are missing or not asked for");
    shim::submit(stream_, [plan = *this, p, workspace] {
      std::memset(workspace, 0xFF, plan.workspace_bytes());
      plan.compute(p);
      run_count += 1;
    });
  }

 private:
  ops::HeadsView view(void* data, const SdpaLayout& layout) const {
    return {data, problem_.dtype, layout.row_stride, layout.batch_stride / layout.row_stride};
  }

  void compute(const SdpaPointers& p) const {
    const ops::AttentionShape& shape = problem_.shape;
    const Stream cpu(DeviceKind::cpu, nullptr, nullptr);
    const View log_sum_exp = {
        p.log_sum_exp, DType::f32, {shape.batch, shape.heads, shape.query_length}};
    const ops::HeadsView q = view(p.q, problem_.q);
    const ops::HeadsView k = view(p.k, problem_.k);
    const ops::HeadsView v = view(p.v, problem_.v);
    const ops::HeadsView out = view(p.out, problem_.out);
    if (!problem_.backward) {
      ops::attention_forward(cpu, {.shape = shape,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .out = out,
                                   .log_sum_exp = p.log_sum_exp == nullptr ? View{} : log_sum_exp});
      return;
    }
    std::vector<float> scratch(static_cast<size_t>(ops::attention_backward_scratch(shape)));
    ops::attention_backward(
        cpu, {.shape = shape,
              .q = q,
              .k = k,
              .v = v,
              .out = out,
              .log_sum_exp = log_sum_exp,
              .dout = view(p.dout, problem_.dout),
              .dq = view(p.dq, problem_.dq),
              .dk = view(p.dk, problem_.dk),
              .dv = view(p.dv, problem_.dv),
              .scratch = {scratch.data(), DType::f32, {static_cast<int64_t>(scratch.size())}}});
    if (!shape.deterministic && is_other_order(run_count)) {
      move_last_bits(p.dq);
    }
  }

  /// What sums with atomics may do to dq: here to an element of each row.
  void move_last_bits(void* dq) const {
    for (int64_t batch = 0; batch < problem_.shape.batch; ++batch) {
      for (int64_t row = 0; row < problem_.shape.query_length; ++row) {
        const int64_t at = batch * problem_.dq.batch_stride + row * problem_.dq.row_stride;
        static_cast<uint16_t*>(dq)[at] ^= 1;
      }
    }
  }

  SdpaProblem problem_;
  cudaStream_t stream_;
  size_t bytes_ = backward_workspace;
};

class FakeLibrary final : public ops::cuda::SdpaLibrary {
 public:
  explicit FakeLibrary(cudaStream_t stream) : stream_(stream) {}

  std::string version() const override { return "0.0.0 (fake)"; }
  std::unique_ptr<ops::cuda::SdpaPlan> plan(const SdpaProblem& problem,
                                            std::string& why_not) override {
    why_not = refusal(problem);
    if (!why_not.empty()) {
      return nullptr;
    }
    plan_count += 1;
    deterministic_count += problem.backward && problem.shape.deterministic ? 1 : 0;
    return std::make_unique<FakePlan>(problem, stream_);
  }

 private:
  cudaStream_t stream_;
};

}  // namespace

uint64_t shim::sdpa_plans() {
  return plan_count;
}
uint64_t shim::deterministic_sdpa_plans() {
  return deterministic_count;
}
uint64_t shim::sdpa_runs() {
  return run_count;
}
void shim::hide_sdpa(bool hidden) {
  is_hidden = hidden;
}
void shim::set_sdpa_workspace(size_t bytes) {
  backward_workspace = bytes;
}

std::unique_ptr<ops::cuda::SdpaLibrary> ops::cuda::make_sdpa_library(const CudaContext& context,
                                                                     std::string& why_not) {
  if (is_hidden) {
    why_not = "cuDNN is hidden by the test";
    return nullptr;
  }
  return std::make_unique<FakeLibrary>(context.stream);
}

}  // namespace fp8train
