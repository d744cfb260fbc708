// The cuda device: one GPU, one compute stream. The runtime is linked statically and looks for the
// driver when it is first called, so that the program starts on machines without either.

#include "device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/key_error.h"
#include "base/not_copied.h"
#include "device/cuda/compiled_code.h"
#include "device/cuda/cuda_context.h"
#include "device/cuda/cuda_graph.h"
#include "device/cuda/staging.h"
#include "device/device.h"

namespace fp8train {
namespace {

class CudaEvent final : public StreamEvent, NotCopied {
 public:
  CudaEvent() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }

  void record(const Stream& stream) override {
    check_cuda(cudaEventRecord(event_, cuda_context(stream).stream), "recording an event");
  }
  void hold(const Stream& stream) override {
    check_cuda(cudaStreamWaitEvent(cuda_context(stream).stream, event_, 0),
               "making a stream wait for an event");
  }
  bool reached() override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // an answer, not a failure: the next check of the thread must not see it
      return false;
    }
    check_cuda(state, "work of a stream");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

constexpr int kLeastCapability = 80;  // bf16 tensor cores; FP8 ones come with 89

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "asking for a GPU's properties");
  return value;
}

int capability_of(int device) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

std::string device_name(int device) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking for a GPU's name");
  return properties.name;
}

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using OwnedStream = std::unique_ptr<CUstream_st, StreamDeleter>;

struct MemoryDeleter {
  void operator()(void* memory) const { cudaFree(memory); }
};

/// The architectures that kernels were compiled for. FP8TRAIN_CUDA_CODE names others in tests whose
/// runtime is a stand-in that runs no kernel.
std::string compiled_code() {
  const char* other = std::getenv("FP8TRAIN_CUDA_CODE");
  return other == nullptr ? FP8TRAIN_COMPILED_CODE : other;
}

/// Returns why no GPU can be used (the driver, or that there is none), or an empty text.
std::string why_driver_is_unusable() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is missing or older than CUDA 13 needs (580)";
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return "this machine has no NVIDIA GPU";
  }
  if (error != cudaSuccess) {
    return fmt::format("CUDA does not start: {}", cudaGetErrorString(error));
  }
  return "";
}

/// Returns that this process does not see the GPU, or an empty text.
std::string why_gpu_is_unseen(int device) {
  const int visible = visible_gpus();
  return device >= 0 && device < visible
             ? ""
             : fmt::format("GPU {} was asked for, but this process sees {} (numbered from 0)",
                           device, visible);
}

/// Returns why this build has no kernels for the GPU, or an empty text.
std::string why_gpu_is_unusable(int device) {
  const int capability = capability_of(device);
  if (capability < kLeastCapability) {
    return fmt::format("the GPU {} is of compute capability {}; {} is the least",
                       device_name(device), capability_text(capability),
                       capability_text(kLeastCapability));
  }
  const std::string code = compiled_code();
  if (!has_code_for(code, capability)) {
    return fmt::format(
        "the GPU {} is of compute capability {}, for which this build has no code (it has {}); "
        "configure another build with -DFP8TRAIN_CUDA_ARCHITECTURES={}-real",
        device_name(device), capability_text(capability), code, capability);
  }
  return "";
}

size_t memory_of_selected() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for a GPU's memory");
  return total_bytes;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : Device(DeviceKind::cuda, &context_) {
    context_.device = index;
    check_cuda(cudaSetDevice(context_.device), "selecting the GPU");
    context_.owner = this;
    context_.capability = capability_of(context_.device);
    set_traits(cuda_traits(context_.capability, memory_of_selected()));
    context_.traits = &traits();
    context_.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, context_.device);
    check_cuda(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking),
               "creating a stream");
    stream_.reset(context_.stream);
    const size_t bytes = traits().library_workspace;
    workspace_.reset(allocate(bytes));
    context_.workspace = workspace_.get();
    context_.workspace_bytes = bytes;
    ledger().add(MemoryCategory::workspace, bytes);
  }
  ~CudaDevice() override {  // what the libraries hold goes before stream and workspace
    context_.gemm.reset();
    context_.attention.reset();
  }

  Stream side_stream() override { return other_stream(side_, side_stream_); }
  Stream copy_stream() override { return other_stream(copies_, copy_stream_); }
  std::unique_ptr<StreamEvent> make_event() override { return std::make_unique<CudaEvent>(); }

  void* allocate(size_t bytes) override {
    if (bytes == 0) {
      return nullptr;
    }
    void* pointer = nullptr;
    const cudaError_t error = cudaMalloc(&pointer, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // so that it is not reported again
      size_t free_bytes = 0;
      size_t total_bytes = 0;
      cudaMemGetInfo(&free_bytes, &total_bytes);
      throw DeviceError(fmt::format(
          "out of GPU memory: asked for {} bytes with {} in use here and {} of {} free; lower "
          "training.micro_batch_size or data.seq_length, or set model.recompute: block",
          bytes, ledger().total(), free_bytes, total_bytes));
    }
    check_cuda(error, "allocating GPU memory");
    return pointer;
  }

  void deallocate(void* pointer, size_t /*bytes*/) noexcept override { cudaFree(pointer); }

  void* allocate_on_host(size_t bytes) override {
    if (bytes == 0) {
      return nullptr;
    }
    void* pointer = nullptr;  // the device has the same address for it (unified addressing)
    const cudaError_t error = cudaMallocHost(&pointer, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // so that it is not reported again
      throw DeviceError(
          fmt::format("out of pinned memory of the host: asked for {} bytes with {} in use by this "
                      "rank; switch "
                      "off keys of `offload`, or take more ranks",
                      bytes, ledger().on_host()));
    }
    check_cuda(error, "allocating pinned memory");
    return pointer;
  }

  void deallocate_on_host(void* pointer, size_t /*bytes*/) noexcept override {
    cudaFreeHost(pointer);
  }

  void copy_from_host(void* to, const void* from, size_t bytes) override {
    staging_.copy_to_device(to, from, bytes, context_.stream);
  }

  void copy_to_host(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) {
      check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context_.stream),
                 "copying from the GPU");
    }
    synchronize();
  }

  void copy(const Stream& stream, void* to, const void* from, size_t bytes) override {
    if (bytes > 0) {
      check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_context(stream).stream),
                 "copying between the GPU and the host");
    }
  }

  void fill_zero(void* pointer, size_t bytes) override {
    if (bytes > 0) {
      check_cuda(cudaMemsetAsync(pointer, 0, bytes, context_.stream), "clearing GPU memory");
    }
  }

  void synchronize() override {
    check_cuda(cudaStreamSynchronize(context_.stream), "waiting for the GPU");
  }

  bool records() const override { return true; }
  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    return capture_graph(context_.stream, work);
  }

  size_t available_memory() const override {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free GPU memory");
    return free_bytes;
  }

  std::string hardware_id() const override {
    char text[32] = {};
    check_cuda(cudaDeviceGetPCIBusId(text, sizeof(text), context_.device),
               "asking for a GPU's bus address");
    return text;
  }

  std::string description() const override {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    int runtime = 0;
    int driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    return fmt::format("cuda: {}, sm_{}, {} multiprocessors, {:.0f} GiB, CUDA {}.{} (driver {}.{})",
                       device_name(context_.device), context_.capability, context_.multiprocessors,
                       static_cast<double>(total_bytes) / (1 << 30), runtime / 1000,
                       runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
  }

 private:
  Stream other_stream(CudaContext& context, OwnedStream& owner) {
    if (context.stream == nullptr) {
      int least = 0;
      int greatest = 0;
      check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "creating a stream");
      // Work that other ranks, or the next block, wait for has the higher priority.
      check_cuda(cudaStreamCreateWithPriority(&context.stream, cudaStreamNonBlocking, greatest),
                 "creating a stream");
      owner.reset(context.stream);
      context.owner = this;
      context.device = context_.device;
      context.capability = context_.capability;
      context.multiprocessors = context_.multiprocessors;
      context.traits = &traits();
    }
    return {DeviceKind::cuda, &context, &counters()};
  }

  OwnedStream stream_;
  OwnedStream side_stream_, copy_stream_;
  std::unique_ptr<void, MemoryDeleter> workspace_;
  CudaContext context_;
  CudaContext side_, copies_;  ///< without workspace and libraries
  PinnedStaging staging_;
};

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw DeviceError(
        fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
  }
}

std::string why_cuda_is_unusable(int index) {
  if (std::string obstacle = why_driver_is_unusable(); !obstacle.empty()) {
    return obstacle;
  }
  if (std::string unseen = why_gpu_is_unseen(index); !unseen.empty()) {
    return unseen;
  }
  return why_gpu_is_unusable(index);
}

int visible_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void* native_queue(const Stream& stream) {
  return cuda_context(stream).stream;
}

void select_gpu(const Stream& stream) {
  check_cuda(cudaSetDevice(cuda_context(stream).device), "selecting the GPU");
}

std::unique_ptr<Device> make_cuda_device(int index) {
  std::string obstacle = why_driver_is_unusable();
  if (obstacle.empty()) {
    if (const std::string unseen = why_gpu_is_unseen(index); !unseen.empty()) {
      throw DeviceError(unseen);
    }
    obstacle = why_gpu_is_unusable(index);
    if (!obstacle.empty() && index > 0) {
      throw DeviceError(fmt::format("GPU {}: {}", index, obstacle));
    }
  }
  if (!obstacle.empty()) {
    throw Keyed<DeviceError>(
        "device", ": cuda was asked for, but " + obstacle + "; use device: cpu or device: auto");
  }
  return std::make_unique<CudaDevice>(index);
}

}  // namespace fp8train
