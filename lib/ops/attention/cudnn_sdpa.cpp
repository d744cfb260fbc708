// cuDNN's attention through cudnn-frontend, whose headers turn the description of attention into a
// graph of cuDNN operations. Neither cuDNN nor the CUDA runtime that those headers ask for is
// linked: both are opened when attention is first needed, as cuBLASLt is.

#include "ops/attention/cudnn_sdpa.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <cstdlib>
#include <unordered_map>

#include "base/error.h"
#include "base/not_copied.h"
#include "device/cuda/cuda_libraries.h"

// cudnn-frontend finds cuDNN's functions through this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace fp8train::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

constexpr size_t kLeastVersion = 90800;  // device properties; deterministic backward on sm_100
constexpr size_t kDeterministicCodes = 91900;  // (TransformerEngine, d0067d0, fused_attn_fp8.cu)
constexpr int64_t kQ = 1, kK = 2, kV = 3, kOut = 4, kLogSumExp = 5, kDout = 6, kDq = 7, kDk = 8,
                  kDv = 9, kQInv = 10, kKInv = 11, kVInv = 12, kOutInv = 13, kDoutInv = 14,
                  kProbabilitiesScale = 15, kProbabilitiesInv = 16, kScoresScale = 17,
                  kScoresInv = 18;
constexpr int64_t kResultScale = 19, kAmax = 22;  // of up to three tensors, and up to four

/// Both libraries stay open to the end of the program. cudnn-frontend opens the runtime itself, an
/// older one first if there is one, unless the environment says which.
bool open_libraries(std::string& why_not) {
  const OpenedLibrary& runtime = cuda_library(CudaLibrary::runtime);
  if (runtime.handle == nullptr) {
    why_not = "cuDNN attention needs the CUDA runtime: " + runtime.why_not;
    return false;
  }
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.file.c_str(), 0);
  const OpenedLibrary& cudnn = cuda_library(CudaLibrary::cudnn);
  if (cudnn.handle == nullptr) {
    why_not = cudnn.why_not;
    return false;
  }
  fe::cudnn_dlhandle = cudnn.handle;
  const size_t version = fe::detail::get_backend_version();
  if (version < kLeastVersion) {
    why_not = "cuDNN " + std::to_string(version) + " is too old for its attention; 9.8 is needed";
    return false;
  }
  return true;
}

void check_status(fe::error_t status, const char* what) {
  if (status.is_bad()) {
    throw DeviceError(std::string(what) + ": " + status.get_message());
  }
}

fe::DataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::e4m3:
      return fe::DataType_t::FP8_E4M3;
    case DType::e5m2:
      return fe::DataType_t::FP8_E5M2;
    case DType::bf16:
      return fe::DataType_t::BFLOAT16;
    default:
      return fe::DataType_t::HALF;
  }
}

/// Names and lays out the tensors of one problem.
class Tensors {
 public:
  Tensors(Graph& graph, const AttentionShape& shape) : graph_(&graph), shape_(shape) {}

  Tensor input(int64_t uid, int64_t heads, const SdpaLayout& layout) const {
    Tensor_attributes tensor;
    tensor.set_uid(uid).set_dim(extents(heads)).set_stride(strides(layout));
    return graph_->tensor(tensor);
  }
  void output(const Tensor& tensor, int64_t uid, int64_t heads, const SdpaLayout& layout) const {
    tensor->set_output(true).set_uid(uid).set_dim(extents(heads)).set_stride(strides(layout));
  }
  /// An fp32 scalar that is read.
  Tensor scalar(int64_t uid) const {
    Tensor_attributes tensor;
    as_scalar(tensor, uid);
    return graph_->tensor(tensor);
  }
  /// The scale of what is written, by its type; without codes it is 1.
  Tensor result_scale(int64_t uid, DType type) const {
    return is_fp8(type) ? scalar(uid) : graph_->tensor(1.0F);
  }
  static void amax(const Tensor& tensor, int64_t index) {
    as_scalar(tensor->set_output(true), kAmax + index);
  }
  void log_sum_exp(Tensor_attributes& tensor) const {
    const int64_t length = shape_.query_length;
    tensor.set_uid(kLogSumExp)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({shape_.batch, shape_.heads, length, 1})
        .set_stride({shape_.heads * length, length, 1, 1});
  }

 private:
  static void as_scalar(Tensor_attributes& tensor, int64_t uid) {
    tensor.set_uid(uid)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({1, 1, 1, 1})
        .set_stride({1, 1, 1, 1});
  }
  std::vector<int64_t> extents(int64_t heads) const {
    return {shape_.batch, heads, shape_.query_length, shape_.head_dim};
  }
  std::vector<int64_t> strides(const SdpaLayout& layout) const {
    return {layout.batch_stride, shape_.head_dim, layout.row_stride, 1};
  }

  Graph* graph_;
  AttentionShape shape_;
};

void describe_forward(Graph& graph, const SdpaProblem& problem) {
  const AttentionShape& shape = problem.shape;
  const Tensors tensors(graph, shape);
  fe::graph::SDPA_attributes attributes;
  attributes.set_name("attention_forward")
      .set_generate_stats(problem.keeps_log_sum_exp)
      .set_causal_mask(true)
      .set_attn_scale(shape.scale);
  auto [out, log_sum_exp] = graph.sdpa(tensors.input(kQ, shape.heads, problem.q),
                                       tensors.input(kK, shape.kv_heads, problem.k),
                                       tensors.input(kV, shape.kv_heads, problem.v), attributes);
  tensors.output(out, kOut, shape.heads, problem.out);
  if (problem.keeps_log_sum_exp) {
    log_sum_exp->set_output(true);
    tensors.log_sum_exp(*log_sum_exp);
  }
}

/// Without the deterministic algorithm dq is summed with atomics. On sm_80 to sm_90 the
/// deterministic one stores the gradients of all scores, B * H * T * T elements of two bytes, in
/// its workspace; on sm_100 it needs no more than the other.
void describe_backward(Graph& graph, const SdpaProblem& problem) {
  const AttentionShape& shape = problem.shape;
  const Tensors tensors(graph, shape);
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward")
      .set_causal_mask(true)
      .set_attn_scale(shape.scale)
      .set_deterministic_algorithm(shape.deterministic);
  Tensor_attributes log_sum_exp;
  tensors.log_sum_exp(log_sum_exp);
  auto [dq, dk, dv] = graph.sdpa_backward(
      tensors.input(kQ, shape.heads, problem.q), tensors.input(kK, shape.kv_heads, problem.k),
      tensors.input(kV, shape.kv_heads, problem.v), tensors.input(kOut, shape.heads, problem.out),
      tensors.input(kDout, shape.heads, problem.dout), graph.tensor(log_sum_exp), attributes);
  tensors.output(dq, kDq, shape.heads, problem.dq);
  tensors.output(dk, kDk, shape.kv_heads, problem.dk);
  tensors.output(dv, kDv, shape.kv_heads, problem.dv);
}

/// Graphs for codes (TransformerEngine, d0067d0, common/fused_attn/fused_attn_fp8.cu).
void describe_codes_forward(Graph& graph, const SdpaProblem& problem) {
  const AttentionShape& shape = problem.shape;
  const Tensors tensors(graph, shape);
  fe::graph::SDPA_fp8_attributes attributes;
  attributes.set_name("attention_forward")
      .set_generate_stats(problem.keeps_log_sum_exp)
      .set_causal_mask(true)
      .set_attn_scale(shape.scale);
  auto [out, log_sum_exp, amax_probabilities, amax_out] = graph.sdpa_fp8(
      tensors.input(kQ, shape.heads, problem.q), tensors.input(kK, shape.kv_heads, problem.k),
      tensors.input(kV, shape.kv_heads, problem.v), tensors.scalar(kQInv), tensors.scalar(kKInv),
      tensors.scalar(kVInv), tensors.scalar(kProbabilitiesInv), tensors.scalar(kProbabilitiesScale),
      tensors.result_scale(kResultScale, problem.codes->out), attributes);
  tensors.output(out, kOut, shape.heads, problem.out);
  out->set_data_type(data_type(problem.codes->out));
  Tensors::amax(amax_out, 0);
  Tensors::amax(amax_probabilities, 1);
  if (problem.keeps_log_sum_exp) {
    log_sum_exp->set_output(true);
    tensors.log_sum_exp(*log_sum_exp);
  }
}

void describe_codes_backward(Graph& graph, const SdpaProblem& problem) {
  const AttentionShape& shape = problem.shape;
  const SdpaCodes& codes = *problem.codes;
  const Tensors tensors(graph, shape);
  fe::graph::SDPA_fp8_backward_attributes attributes;
  attributes.set_name("attention_backward")
      .set_causal_mask(true)
      .set_attn_scale(shape.scale)
      .set_deterministic_algorithm(shape.deterministic);
  Tensor_attributes log_sum_exp;
  tensors.log_sum_exp(log_sum_exp);
  const Tensor out = tensors.input(kOut, shape.heads, problem.out);
  out->set_data_type(data_type(codes.out));
  const Tensor dout = tensors.input(kDout, shape.heads, problem.dout);
  dout->set_data_type(data_type(codes.dout));
  auto [dq, dk, dv, amax_dq, amax_dk, amax_dv, amax_scores] = graph.sdpa_fp8_backward(
      tensors.input(kQ, shape.heads, problem.q), tensors.input(kK, shape.kv_heads, problem.k),
      tensors.input(kV, shape.kv_heads, problem.v), out, dout, graph.tensor(log_sum_exp),
      tensors.scalar(kQInv), tensors.scalar(kKInv), tensors.scalar(kVInv),
      tensors.result_scale(kOutInv, codes.out), tensors.scalar(kDoutInv),
      tensors.scalar(kProbabilitiesInv), tensors.scalar(kScoresInv),
      tensors.scalar(kProbabilitiesScale), tensors.result_scale(kResultScale, codes.gradients),
      tensors.result_scale(kResultScale + 1, codes.gradients),
      tensors.result_scale(kResultScale + 2, codes.gradients), tensors.scalar(kScoresScale),
      attributes);
  tensors.output(dq, kDq, shape.heads, problem.dq);
  tensors.output(dk, kDk, shape.kv_heads, problem.dk);
  tensors.output(dv, kDv, shape.kv_heads, problem.dv);
  const Tensor amax[] = {amax_dq, amax_dk, amax_dv, amax_scores};
  for (int64_t i = 0; i < 4; ++i) {
    Tensors::amax(amax[i], i);
  }
  for (const Tensor& gradient : {dq, dk, dv}) {
    gradient->set_data_type(data_type(codes.gradients));
  }
}

class Plan final : public SdpaPlan {
 public:
  Plan(std::unique_ptr<Graph> graph, cudnnHandle_t handle)
      : graph_(std::move(graph)), handle_(handle) {
    int64_t bytes = 0;
    check_status(graph_->get_workspace_size(bytes), "asking cuDNN for an attention's workspace");
    workspace_bytes_ = static_cast<size_t>(bytes);
  }

  size_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const SdpaPointers& pointers, void* workspace) override {
    const auto read = [](const float* scalar) { return const_cast<float*>(scalar); };
    const std::pair<int64_t, void*> all[] = {
        {kQ, pointers.q},
        {kK, pointers.k},
        {kV, pointers.v},
        {kOut, pointers.out},
        {kDq, pointers.dq},
        {kLogSumExp, pointers.log_sum_exp},
        {kDk, pointers.dk},
        {kDv, pointers.dv},
        {kDout, pointers.dout},
        {kQInv, read(pointers.qkv_inv)},
        {kKInv, read(pointers.qkv_inv)},
        {kVInv, read(pointers.qkv_inv)},
        {kOutInv, read(pointers.out_inv)},
        {kDoutInv, read(pointers.dout_inv)},
        {kProbabilitiesScale, read(pointers.probabilities_scale)},
        {kProbabilitiesInv, read(pointers.probabilities_inv)},
        {kScoresScale, read(pointers.dscores_scale)},
        {kScoresInv, read(pointers.dscores_inv)}};
    const int64_t results = pointers.dq == nullptr ? 1 : 3;
    for (int64_t i = 0; i < results && pointers.result_scale != nullptr; ++i) {
      memory_[kResultScale + i] = read(pointers.result_scale);
    }
    for (int64_t i = 0; i <= results && pointers.amax != nullptr; ++i) {
      memory_[kAmax + i] = pointers.amax + i;
    }
    for (const auto& [uid, pointer] : all) {
      if (pointer != nullptr) {
        memory_[uid] = pointer;  // the same keys in every call, so that only the first allocates
      }
    }
    check_status(graph_->execute(handle_, memory_, workspace), "attention in cuDNN");
  }

 private:
  std::unique_ptr<Graph> graph_;
  cudnnHandle_t handle_;
  size_t workspace_bytes_ = 0;
  std::unordered_map<int64_t, void*> memory_;
};

class Library final : public SdpaLibrary, NotCopied {
 public:
  explicit Library(int capability) : capability_(capability) {}
  ~Library() override {
    if (handle_ != nullptr) {
      fe::detail::destroy_handle(handle_);
    }
  }

  bool open(cudaStream_t stream, std::string& why_not) {
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS ||
        fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS) {
      why_not = "cuDNN does not start: " + fe::detail::get_last_error_string_();
      return false;
    }
    return true;
  }
  void plan_for(const std::string& properties) {
    properties_ = std::make_shared<fe::DeviceProperties>();
    check_status(properties_->deserialize({properties.begin(), properties.end()}),
                 "reading a device's properties");
  }

  std::string version() const override {
    const size_t version = fe::detail::get_backend_version();
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }

  /// The frontend reports a missing function by an exception of its own.
  std::unique_ptr<SdpaPlan> plan(const SdpaProblem& problem, std::string& why_not) override {
    try {
      return build_plan(problem, why_not);
    } catch (const std::exception& error) {
      why_not = error.what();
      return nullptr;
    }
  }

 private:
  std::unique_ptr<SdpaPlan> build_plan(const SdpaProblem& problem, std::string& why_not) const {
    const bool is_old = fe::detail::get_backend_version() < kDeterministicCodes;
    if (is_old && problem.codes && problem.backward && problem.shape.deterministic) {
      why_not = "a deterministic backward pass in FP8 needs cuDNN 9.19";
      return nullptr;
    }
    auto graph = std::make_unique<Graph>();
    graph->set_io_data_type(data_type(problem.dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(capability_);
    if (properties_ != nullptr) {
      graph->set_device_properties(properties_);
    }
    const auto describe = problem.codes
                              ? problem.backward ? describe_codes_backward : describe_codes_forward
                          : problem.backward ? describe_backward
                                             : describe_forward;
    describe(*graph, problem);
    fe::error_t status = build(*graph);
    if (status.is_bad()) {
      why_not = status.get_message();
      return nullptr;
    }
    return std::make_unique<Plan>(std::move(graph), handle_);
  }

  fe::error_t build(Graph& graph) const {
    fe::error_t status = graph.validate();
    if (status.is_good()) {
      status = graph.build_operation_graph(handle_);
    }
    if (status.is_good()) {
      status = graph.create_execution_plans({fe::HeurMode_t::A});
    }
    if (status.is_good()) {
      status = graph.check_support();
    }
    return status.is_good() ? graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE) : status;
  }

  int capability_;
  cudnnHandle_t handle_ = nullptr;  // null where plans are only made
  std::shared_ptr<fe::DeviceProperties> properties_;
};

}  // namespace

std::unique_ptr<SdpaLibrary> make_sdpa_library(const CudaContext& context, std::string& why_not) {
  try {
    if (!open_libraries(why_not)) {
      return nullptr;
    }
    auto library = std::make_unique<Library>(context.capability);
    return library->open(context.stream, why_not) ? std::move(library) : nullptr;
  } catch (const std::exception& error) {
    why_not = error.what();
    return nullptr;
  }
}

std::unique_ptr<SdpaLibrary> make_sdpa_planner(int capability, const std::string& properties,
                                               std::string& why_not) {
  if (!open_libraries(why_not)) {
    return nullptr;
  }
  auto library = std::make_unique<Library>(capability);
  library->plan_for(properties);
  return library;
}

}  // namespace fp8train::ops::cuda
