// Attention on cuda: cuDNN for what it takes, our own kernels for the rest. A plan is made when a
// shape is first seen, which compiles kernels for a second or more; the steady step makes none.

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "base/log.h"
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/attention/cudnn_sdpa.h"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int64_t kAlignment = 16;     // bytes that cuDNN reads at once
constexpr size_t kAmaxBytes = 256;     // before the workspace of a plan in FP8
constexpr size_t kWorkspaceShare = 8;  // a plan may take this part of the GPU's memory

enum class Choice : uint8_t { automatic, own, cudnn };

Choice choice_of_environment() {
  const char* value = std::getenv("FP8TRAIN_CUDA_ATTENTION");
  if (value == nullptr) {
    return Choice::automatic;
  }
  if (std::string_view(value) == "own") {
    return Choice::own;
  }
  if (std::string_view(value) == "cudnn") {
    return Choice::cudnn;
  }
  throw ConfigError(std::string("FP8TRAIN_CUDA_ATTENTION=") + value + ": expected own or cudnn");
}

SdpaLayout layout_of(const HeadsView& view) {
  return {view.row_stride, view.row_stride * view.length_capacity};
}

bool aligned(const HeadsView& view) {
  const auto row_bytes = view.row_stride * static_cast<int64_t>(size_of(view.dtype));
  return reinterpret_cast<uintptr_t>(view.data) % kAlignment == 0 && row_bytes % kAlignment == 0;
}

/// Whether a call is worth a plan: the sequences of training and evaluation, which fill their
/// memory. Those of a KV cache change their length with every token.
bool suits(const SdpaProblem& problem, const std::vector<HeadsView>& tensors) {
  const AttentionShape& shape = problem.shape;
  const bool has_type = problem.codes ? is_fp8(problem.dtype)
                                      : problem.dtype == DType::bf16 || problem.dtype == DType::f16;
  return has_type && shape.query_length == shape.key_length && shape.query_length > 1 &&
         shape.head_dim % (problem.codes ? 16 : 8) == 0 &&
         std::all_of(tensors.begin(), tensors.end(), [&](const HeadsView& view) {
           return aligned(view) && view.length_capacity == shape.query_length;
         });
}

std::string text_of(const SdpaProblem& problem) {
  const AttentionShape& shape = problem.shape;
  return std::string(problem.backward ? "backward" : "forward") + " of batch " +
         std::to_string(shape.batch) + ", length " + std::to_string(shape.query_length) + ", " +
         std::to_string(shape.heads) + " heads (" + std::to_string(shape.kv_heads) + " kv) of " +
         std::to_string(shape.head_dim) + ", " + std::string(name_of(problem.dtype));
}

void check_head_dim(const AttentionShape& shape) {
  check(shape.head_dim <= kMaxHeadDimCuda, "attention: head_dim must be 1 .. 256 on cuda");
}

/// The plans of one device.
class AttentionPlans final : public CudaExtension {
 public:
  explicit AttentionPlans(CudaContext& context)
      : context_(&context), choice_(choice_of_environment()) {
    if (choice_ == Choice::own) {
      why_not_ = "FP8TRAIN_CUDA_ATTENTION=own";
      return;
    }
    library_ = make_sdpa_library(context, why_not_);
    if (library_ == nullptr && choice_ == Choice::cudnn) {
      throw ConfigError("FP8TRAIN_CUDA_ATTENTION=cudnn: " + why_not_);
    }
    if (library_ == nullptr) {
      log_warning("attention runs on our own kernels, which are slower than cuDNN's: " + why_not_);
    }
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for a GPU's memory");
    workspace_limit_ = total_bytes / kWorkspaceShare;
  }

  /// Says which kernels run. For backward it knows only the plans that have been made so far.
  std::string description() const {
    if (library_ == nullptr) {
      return "own kernels (" + why_not_ + "), deterministic";
    }
    std::string text = "cuDNN " + library_->version() + " in bf16 and fp16";
    for (const Entry& entry : entries_) {
      std::string more;
      if (entry.plan == nullptr) {
        more = "; own kernels for " + text_of(entry.problem) + ": " + entry.why_not;
      } else if (entry.problem.backward) {
        more = entry.problem.shape.deterministic
                   ? "; deterministic"
                   : "; the last bits of its gradients vary from run to run "
                     "(training.deterministic: false)";
      }
      text += text.find(more) == std::string::npos ? more : "";
    }
    if (masks_documents_) {
      text += "; own kernels, which are slower, for sequences of several documents";
    }
    return text;
  }

  /// cuDNN's plan, made when the problem is new; null where our kernels run.
  SdpaPlan* plan_for(const SdpaProblem& problem, const std::vector<HeadsView>& tensors,
                     const DocumentStarts& documents) {
    masks_documents_ = masks_documents_ || !documents.empty();
    if (library_ == nullptr || !documents.empty() || !suits(problem, tensors)) {
      return nullptr;
    }
    for (const Entry& entry : entries_) {
      if (entry.problem == problem) {
        return entry.plan.get();
      }
    }
    Entry& entry = entries_.emplace_back();
    entry.problem = problem;
    entry.plan = make_plan(problem, entry.why_not);
    return entry.plan.get();
  }

 private:
  struct Entry {
    SdpaProblem problem;
    std::unique_ptr<SdpaPlan> plan;  // null where our kernels run
    std::string why_not;             // then
  };

  std::unique_ptr<SdpaPlan> make_plan(const SdpaProblem& problem, std::string& why_not) const {
    std::unique_ptr<SdpaPlan> plan = library_->plan(problem, why_not);
    if (plan != nullptr) {
      why_not = why_no_workspace(problem, plan->workspace_bytes());
      plan = why_not.empty() ? std::move(plan) : nullptr;
    }
    if (plan == nullptr) {
      const std::string text = "cuDNN does not run attention, " + text_of(problem) + ": " + why_not;
      if (problem.codes) {
        throw Keyed<DeviceError>("fp8.attention", ": " + text + "; remove the key");
      }
      if (choice_ == Choice::cudnn) {
        throw DeviceError(text);
      }
      log_warning(text + "; our own kernels, which are slower, do");
    }
    return plan;
  }

  /// Backward's is the caller's scratch, which is part of the plan of a step; forward needs next to
  /// nothing and takes the workspace of all libraries. Empty, or why there is none.
  std::string why_no_workspace(const SdpaProblem& problem, size_t bytes) const {
    const std::string needs = "it needs a workspace of " + std::to_string(bytes) + " bytes, ";
    if (problem.backward && bytes > workspace_limit_) {
      return needs + "more than an eighth of the GPU's memory" +
             (problem.shape.deterministic ? " (training.deterministic: false takes less)" : "");
    }
    if (!problem.backward && bytes + kAmaxBytes > context_->workspace_bytes) {
      return needs + "more than the " + std::to_string(context_->workspace_bytes) +
             " that libraries share";
    }
    return {};
  }

  CudaContext* context_;
  Choice choice_;
  std::string why_not_;
  std::unique_ptr<SdpaLibrary> library_;
  std::vector<Entry> entries_;  // a handful: forward and backward of each shape of a run
  size_t workspace_limit_ = 0;
  bool masks_documents_ = false;
};

AttentionPlans& plans_of(const Stream& stream) {
  CudaContext& context = cuda_context(stream);
  if (context.attention == nullptr) {
    context.attention = std::make_unique<AttentionPlans>(context);
  }
  return static_cast<AttentionPlans&>(*context.attention);
}

/// The codes in rows that a tensor is cast to in FP8; without a cast the tensor itself.
HeadsView written(const AttentionCodes& codes, const HeadsView& tensor, int64_t first_column) {
  const View& to = codes.cast.out.rowwise.codes;
  return to.empty() || !codes.is_on()
             ? tensor
             : HeadsView{static_cast<char*>(to.data) + first_column, to.dtype, to.shape.back(),
                         tensor.length_capacity};
}

/// The plan of a problem; null where our kernels run. Only cuDNN has attention in FP8.
SdpaPlan* plan_of(Stream stream, const SdpaProblem& problem, const std::vector<HeadsView>& tensors,
                  const DocumentStarts& documents) {
  SdpaPlan* const plan = plans_of(stream).plan_for(problem, tensors, documents);
  if (plan == nullptr && problem.codes) {
    throw Keyed<DeviceError>(
        "fp8.attention",
        ": on a GPU attention in FP8 is cuDNN's, which does not run it for " + text_of(problem) +
            (documents.empty() ? "" : ", with several documents in a sequence") +
            "; attention runs on " + attention_kernels(stream) + "; remove the key");
  }
  return plan;
}

/// The tensors of a backward problem as they are written.
AttentionBackward as_written(AttentionBackward call) {
  const AttentionShape& shape = call.shape;
  const int64_t keys = shape.heads * shape.head_dim;
  call.dq = written(call.codes, call.dq, 0);
  call.dk = written(call.codes, call.dk, keys);
  call.dv = written(call.codes, call.dv, keys + shape.kv_heads * shape.head_dim);
  return call;
}

/// The plan of a call that is as_written().
SdpaPlan* backward_plan(Stream stream, const AttentionBackward& call) {
  const auto codes = call.codes.is_on()
                         ? std::optional(SdpaCodes{call.out.dtype, call.dout.dtype, call.dq.dtype})
                         : std::nullopt;
  return plan_of(stream,
                 {.shape = call.shape,
                  .dtype = call.q.dtype,
                  .codes = codes,
                  .backward = true,
                  .q = layout_of(call.q),
                  .k = layout_of(call.k),
                  .v = layout_of(call.v),
                  .out = layout_of(call.out),
                  .dout = layout_of(call.dout),
                  .dq = layout_of(call.dq),
                  .dk = layout_of(call.dk),
                  .dv = layout_of(call.dv)},
                 {call.q, call.k, call.v, call.out, call.dout, call.dq, call.dk, call.dv},
                 call.document_starts);
}

/// Runs a plan. In FP8 it combines the largest magnitudes that the plan has found into those of the
/// cast and of a tensor of the kernel, and values that are wanted next to codes are those of the
/// codes.
void run_plan(Stream stream, SdpaPlan& plan, SdpaPointers pointers, const AttentionCodes& codes,
              void* workspace, void* values) {
  if (!codes.is_on()) {
    return plan.run(pointers, workspace);
  }
  const int64_t results = pointers.dq == nullptr ? 1 : 3;
  const KernelCodes& in_kernel = pointers.dq == nullptr ? codes.probabilities : codes.dscores;
  pointers.amax = static_cast<float*>(workspace);
  pointers.qkv_inv = codes.qkv_inv;
  pointers.out_inv = codes.out_inv;
  pointers.dout_inv = codes.dout_inv;
  pointers.result_scale = codes.cast.out.rowwise.cast_scales;
  pointers.probabilities_scale = codes.probabilities.scale;
  pointers.probabilities_inv = codes.probabilities.scale_inv;
  pointers.dscores_scale = codes.dscores.scale;
  pointers.dscores_inv = codes.dscores.scale_inv;
  fill(stream, {pointers.amax, DType::f32, {results + 1}}, 0.0F);
  plan.run(pointers, static_cast<char*>(workspace) + kAmaxBytes);
  if (codes.cast.amax != nullptr) {
    amax(stream, View{pointers.amax, DType::f32, {results}}, codes.cast.amax, true);
  }
  if (in_kernel.amax != nullptr) {
    amax(stream, View{pointers.amax + results, DType::f32, {1}}, in_kernel.amax, true);
  }
  if (values != nullptr && !codes.cast.out.empty()) {
    const Shape& shape = codes.cast.out.rowwise.codes.shape;
    dequantize(stream, codes.cast.out.rowwise, {values, DType::bf16, shape});
  }
}

}  // namespace

void attention_forward(Stream stream, const AttentionForward& call) {
  check_head_dim(call.shape);
  const HeadsView out = written(call.codes, call.out, 0);
  const SdpaProblem problem = {
      .shape = call.shape,
      .dtype = call.q.dtype,
      .codes = call.codes.is_on() ? std::optional(SdpaCodes{.out = out.dtype}) : std::nullopt,
      .keeps_log_sum_exp = !call.log_sum_exp.empty(),
      .q = layout_of(call.q),
      .k = layout_of(call.k),
      .v = layout_of(call.v),
      .out = layout_of(out)};
  SdpaPlan* const plan =
      plan_of(stream, problem, {call.q, call.k, call.v, out}, call.document_starts);
  if (plan == nullptr) {
    return own_attention_forward(stream, call);
  }
  run_plan(stream, *plan,
           {.q = call.q.data,
            .k = call.k.data,
            .v = call.v.data,
            .out = out.data,
            .log_sum_exp = call.log_sum_exp.data},
           call.codes, cuda_context(stream).workspace, call.out.data);
}

void attention_backward(Stream stream, const AttentionBackward& call) {
  check_head_dim(call.shape);
  const AttentionBackward to = as_written(call);
  SdpaPlan* const plan = backward_plan(stream, to);
  if (plan == nullptr) {
    return own_attention_backward(stream, call);
  }
  run_plan(stream, *plan,
           {.q = to.q.data,
            .k = to.k.data,
            .v = to.v.data,
            .out = to.out.data,
            .log_sum_exp = to.log_sum_exp.data,
            .dout = to.dout.data,
            .dq = to.dq.data,
            .dk = to.dk.data,
            .dv = to.dv.data},
           call.codes, call.scratch.data, call.dq.data);
}

std::string attention_kernels(Stream stream) {
  return plans_of(stream).description();
}

std::optional<size_t> attention_backward_workspace(Stream stream, const AttentionBackward& call) {
  const SdpaPlan* const plan = backward_plan(stream, as_written(call));
  return plan == nullptr
             ? std::nullopt
             : std::optional(plan->workspace_bytes() + (call.codes.is_on() ? kAmaxBytes : 0));
}

}  // namespace fp8train::ops::cuda
