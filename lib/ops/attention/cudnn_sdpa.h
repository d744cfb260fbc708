#pragma once
// cuDNN's attention as the library sees it: a problem is described, a plan runs it. No header of
// cuDNN is needed here, and exactly one file behind it is built in: cudnn_sdpa.cpp goes through
// cudnn-frontend, cudnn_sdpa_absent.cpp stands in for a build without its headers, and in the SHIM
// form a fake enforces the library's rules (tests/support/cuda_shim/cudnn_fake.cpp).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_context.h"
#include "ops/attention/attention.h"

namespace fp8train::ops::cuda {

/// Where a tensor (B, heads, T, D) lies: strides in elements between positions and between
/// sequences. Heads are D apart and D is contiguous.
struct SdpaLayout {
  int64_t row_stride = 0;
  int64_t batch_stride = 0;

  bool operator==(const SdpaLayout&) const = default;
};

/// The types of a problem in FP8 other than that of q, k and v: codes, or a type of 16 bits.
struct SdpaCodes {
  DType out = DType::e4m3;
  DType dout = DType::e5m2, gradients = DType::e5m2;  ///< backward only; scores' have that of dout

  bool operator==(const SdpaCodes&) const = default;
};

/// The key of a plan: one causal attention, or its gradients, with as many queries as keys.
struct SdpaProblem {
  AttentionShape shape;
  DType dtype = DType::bf16;  ///< type of all tensors but log_sum_exp, which is fp32 (B, H, T)
  std::optional<SdpaCodes> codes = {};  ///< then `dtype` is that of q, k and v
  bool backward = false;
  bool keeps_log_sum_exp = false;  ///< forward only
  SdpaLayout q, k, v, out;
  SdpaLayout dout, dq, dk, dv;  ///< backward only

  bool operator==(const SdpaProblem&) const = default;
};

/// Device memory of one call. Pointers to tensors that the problem lacks are null. Forward writes
/// out and log_sum_exp (natural logarithm of the sum of exponentials of the scaled scores);
/// backward reads them and writes dq, dk and dv.
struct SdpaPointers {
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  void* out = nullptr;
  void* log_sum_exp = nullptr;
  void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  /// Of a problem in FP8: fp32 scalars, those that are read, then the largest magnitudes that are
  /// written. `result_scale`: of what is written in codes.
  const float *qkv_inv = nullptr, *out_inv = nullptr, *dout_inv = nullptr, *result_scale = nullptr;
  const float *probabilities_scale = nullptr, *probabilities_inv = nullptr;
  const float *dscores_scale = nullptr, *dscores_inv = nullptr;
  float* amax = nullptr;  ///< of out and probabilities, or of dq, dk, dv and the scores' gradients
};

/// A compiled plan for one problem.
class SdpaPlan {
 public:
  virtual ~SdpaPlan() = default;
  /// Device memory that run() needs, 256-byte aligned.
  virtual size_t workspace_bytes() const = 0;
  /// Runs the plan on the stream that the library was made for. Asynchronous. Throws DeviceError.
  virtual void run(const SdpaPointers& pointers, void* workspace) = 0;
};

/// cuDNN's attention on one stream.
class SdpaLibrary {
 public:
  virtual ~SdpaLibrary() = default;
  virtual std::string version() const = 0;
  /// Makes a plan, or returns null with the reason in `why_not` if the library refuses the problem.
  /// This takes a second or more, since kernels are compiled. Backward plans are as deterministic
  /// as the problem's shape says.
  virtual std::unique_ptr<SdpaPlan> plan(const SdpaProblem& problem, std::string& why_not) = 0;
};

/// For the GPU and the stream of `context`, which outlives it. Null, with the reason in `why_not`,
/// where this build or this machine has no cuDNN.
std::unique_ptr<SdpaLibrary> make_sdpa_library(const CudaContext& context, std::string& why_not);

/// Plans for a GPU that is not here, given the JSON that cuDNN writes of a device's properties
/// (cuDNN 9.8); its plans say what they need but cannot run. For tests of the graphs, and
/// only in builds with cudnn-frontend.
std::unique_ptr<SdpaLibrary> make_sdpa_planner(int capability, const std::string& properties,
                                               std::string& why_not);

}  // namespace fp8train::ops::cuda
