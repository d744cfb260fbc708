#include "ops/gemm/gemm_tuning_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "ops/gemm/cublaslt_api.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kRounds = 7;
constexpr size_t kFileLimit = size_t{16} << 20;
constexpr char kHexDigits[] = "0123456789abcdef";

std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  unsigned char bytes[sizeof(algorithm)];
  std::memcpy(bytes, &algorithm, sizeof(bytes));
  std::string digits;
  for (const unsigned char byte : bytes) {
    digits += kHexDigits[byte >> 4];
    digits += kHexDigits[byte & 15];
  }
  return digits;
}

bool is_algorithm(const std::string& digits) {
  return digits.size() == 2 * sizeof(cublasLtMatmulAlgo_t) &&
         digits.find_first_not_of(kHexDigits) == std::string::npos;
}

cublasLtMatmulAlgo_t from_hex(const std::string& digits) {
  unsigned char bytes[sizeof(cublasLtMatmulAlgo_t)];
  const auto value = [](char digit) {
    return static_cast<int>(std::strchr(kHexDigits, digit) - kHexDigits);
  };
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<unsigned char>(16 * value(digits[2 * i]) + value(digits[2 * i + 1]));
  }
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, bytes, sizeof(algorithm));
  return algorithm;
}

/// "gemm-NVIDIA_H200-sm90-132-cublaslt130100.txt"
std::string file_name(const CudaContext& context) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, context.device), "asking for a GPU's name");
  std::string name = properties.name;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return fmt::format("gemm-{}-sm{}-{}-cublaslt{}.txt", name, context.capability,
                     context.multiprocessors, cublaslt().get_version());
}

/// Time on the GPU between two points of its stream.
class EventTimer {
 public:
  explicit EventTimer(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) {
      check_cuda(cudaEventCreateWithFlags(&event, 0), "creating an event");
    }
  }
  ~EventTimer() {
    for (const cudaEvent_t event : events_) {
      cudaEventDestroy(event);
    }
  }
  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;

  void mark(int end) { check_cuda(cudaEventRecord(events_[end], stream_), "recording an event"); }
  float milliseconds() {
    check_cuda(cudaEventSynchronize(events_[1]), "waiting for the GPU");
    float elapsed = 0.0F;
    check_cuda(cudaEventElapsedTime(&elapsed, events_[0], events_[1]), "timing the GPU");
    return elapsed;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t events_[2] = {};
};

/// Memory that, written over, leaves nothing of the operands in the second-level cache: in a step
/// they do not come from there either.
class CacheFlush {
 public:
  explicit CacheFlush(const CudaContext& context) : stream_(context.stream) {
    int cache = 0;
    cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, context.device);
    bytes_ = 2 * static_cast<size_t>(cache);
    if (cudaMalloc(&memory_, bytes_) != cudaSuccess) {
      memory_ = nullptr;
      cudaGetLastError();  // so that it is not reported again
    }
  }
  ~CacheFlush() {
    if (memory_ != nullptr) {
      cudaFree(memory_);
    }
  }
  CacheFlush(const CacheFlush&) = delete;
  CacheFlush& operator=(const CacheFlush&) = delete;

  bool ready() const { return memory_ != nullptr; }
  void run() { check_cuda(cudaMemsetAsync(memory_, 0, bytes_, stream_), "clearing GPU memory"); }

 private:
  cudaStream_t stream_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

/// Median time of `run`; infinite when the library does not take it.
float median_time(EventTimer& timer, CacheFlush& flush, const std::function<bool()>& run) {
  if (!run()) {
    return std::numeric_limits<float>::infinity();
  }
  float times[kRounds];
  for (float& time : times) {
    flush.run();
    timer.mark(0);
    run();
    timer.mark(1);
    time = timer.milliseconds();
  }
  std::nth_element(times, times + kRounds / 2, times + kRounds);
  return times[kRounds / 2];
}

}  // namespace

GemmTuning::GemmTuning(const CudaContext& context, const std::filesystem::path& folder)
    : context_(&context), file_(folder / file_name(context)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw DeviceError(fmt::format("gemm_tuning: {}: {}; name another folder by FP8TRAIN_CACHE_DIR",
                                  folder.string(), error.message()));
  }
  if (!std::filesystem::exists(file_)) {
    return;
  }
  std::istringstream lines(read_text_file(file_, kFileLimit));
  for (std::string line; std::getline(lines, line);) {
    const size_t tab = line.find('\t');
    if (tab != std::string::npos && is_algorithm(line.substr(tab + 1))) {
      algorithms_[line.substr(0, tab)] = line.substr(tab + 1);
    }
  }
}

std::optional<cublasLtMatmulAlgo_t> GemmTuning::find(const std::string& key) const {
  const auto found = algorithms_.find(key);
  if (found == algorithms_.end()) {
    return std::nullopt;
  }
  return from_hex(found->second);
}

size_t GemmTuning::choose(const std::string& key,
                          const std::vector<cublasLtMatmulAlgo_t>& candidates,
                          const std::function<bool(const cublasLtMatmulAlgo_t&)>& run) {
  EventTimer timer(context_->stream);
  CacheFlush flush(*context_);
  if (!flush.ready()) {
    throw DeviceError("not enough GPU memory to measure");
  }
  size_t best = 0;
  float best_time = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const float time = median_time(timer, flush, [&] { return run(candidates[i]); });
    if (time < best_time) {
      best = i;
      best_time = time;
    }
  }
  check(best_time < std::numeric_limits<float>::infinity(),
        "gemm_tuning: the library takes none of the algorithms that it suggests");
  algorithms_[key] = to_hex(candidates[best]);
  write();
  return best;
}

void GemmTuning::write() const {
  std::string text;
  for (const auto& [key, digits] : algorithms_) {
    text += key + '\t' + digits + '\n';
  }
  write_file_atomically(file_, text);
}

}  // namespace fp8train::ops::cuda
