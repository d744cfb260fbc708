#include "ops/gemm/gemm_tuning_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/key_error.h"
#include "base/log.h"
#include "base/not_copied.h"
#include "device/device.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"
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

/// To be raised when algorithms that were stored before must be chosen anew.
constexpr int kFileVersion = 2;

/// "gemm-NVIDIA_H200-sm90-132-cublaslt130100-2.txt"
std::string file_name(const CudaContext& context) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, context.device), "asking for a GPU's name");
  std::string name = properties.name;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return fmt::format("gemm-{}-sm{}-{}-cublaslt{}-{}.txt", name, context.capability,
                     context.multiprocessors, cublaslt().get_version(), kFileVersion);
}

/// Time on the GPU between two points of its stream.
class EventTimer : NotCopied {
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
class CacheFlush : NotCopied {
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

/// "algorithm 66, split-K 4, reduction 2"
std::string describe(const cublasLtMatmulAlgo_t& algorithm) {
  const auto attribute = [&algorithm](cublasLtMatmulAlgoConfigAttributes_t which) {
    uint32_t value = 0;
    size_t written = 0;
    cublaslt().matmul_algo_config_get_attribute(&algorithm, which, &value, sizeof(value), &written);
    return value;
  };
  return fmt::format("algorithm {}, split-K {}, reduction {}", attribute(CUBLASLT_ALGO_CONFIG_ID),
                     attribute(CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                     attribute(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME));
}

/// Compares the results of algorithms with that of the first one that runs, on rows that are spread
/// over all: 64, the first and the last among them.
class ResultCheck {
 public:
  ResultCheck(const CudaContext& context, const TunedProduct& product)
      : device_(context.owner), product_(&product) {}

  /// Whether the algorithm runs and agrees; if it does not agree, with a warning.
  bool accepts(const cublasLtMatmulAlgo_t& algorithm) {
    device_->fill_zero(product_->result.data, product_->result.bytes());
    if (!product_->run(algorithm)) {
      return false;
    }
    const std::vector<float> result = sample();
    if (first_.empty()) {
      first_ = result;
      return true;
    }
    const double difference = difference_from_first(result);
    if (difference <= product_->bound) {
      return true;
    }
    log_warning(
        fmt::format("gemm_tuning: {}: {} differs from the library's first choice by {:.2g}, "
                    "more than {:.2g}, and is left out",
                    product_->key, describe(algorithm), difference, product_->bound));
    return false;
  }

 private:
  std::vector<float> sample() const {
    constexpr int64_t kRows = 64;
    const Shape& shape = product_->result.shape;
    const int64_t rows = std::min(kRows, shape[0]);
    std::vector<float> values;
    std::vector<char> row(static_cast<size_t>(shape[1]) * size_of(product_->result.dtype));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = rows == 1 ? 0 : i * (shape[0] - 1) / (rows - 1);
      device_->copy_to_host(row.data(), rows_of(product_->result, at, 1).data, row.size());
      FloatTypes::with(product_->result.dtype, [&]<typename T>(TypeTag<T>) {
        const T* const from = reinterpret_cast<const T*>(row.data());
        for (int64_t j = 0; j < shape[1]; ++j) {
          values.push_back(load_as_float(from + j));
        }
      });
    }
    return values;
  }

  /// Infinity where only one of the results has a number. What is no number in both says nothing.
  double difference_from_first(const std::vector<float>& result) const {
    double difference = 0.0;
    double total = 0.0;
    for (size_t i = 0; i < result.size(); ++i) {
      const double expected = first_[i];
      const double found = result[i];
      if (std::isfinite(expected) && std::isfinite(found)) {
        difference += (found - expected) * (found - expected);
        total += expected * expected;
      } else if (std::isfinite(expected) != std::isfinite(found)) {
        return std::numeric_limits<double>::infinity();
      }
    }
    return difference == 0.0 ? 0.0 : std::sqrt(difference / total);
  }

  Device* device_;
  const TunedProduct* product_;
  std::vector<float> first_;
};

}  // namespace

double difference_bound(DType operand, DType result, bool fast_accumulate, int64_t k) {
  const double rounding = result == DType::bf16 ? 0x1p-8 : result == DType::f16 ? 0x1p-11 : 0.0;
  if (!is_code_type(operand)) {
    return 0x1p-12 + rounding;
  }
  return 0x1p-10 + rounding + (fast_accumulate ? static_cast<double>(k) * 0x1p-19 : 0.0);
}

GemmTuning::GemmTuning(const CudaContext& context, const std::filesystem::path& folder)
    : context_(&context), file_(folder / file_name(context)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Keyed<DeviceError>("gemm_tuning",
                             fmt::format(": {}: {}; name another folder by FP8TRAIN_CACHE_DIR",
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

std::optional<size_t> GemmTuning::choose(const TunedProduct& product,
                                         const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  EventTimer timer(context_->stream);
  CacheFlush flush(*context_);
  if (!flush.ready()) {
    throw DeviceError("not enough GPU memory to measure");
  }
  ResultCheck result(*context_, product);
  std::optional<size_t> best;
  float best_time = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!result.accepts(candidates[i])) {
      continue;
    }
    const float time = median_time(timer, flush, [&] { return product.run(candidates[i]); });
    if (time < best_time) {
      best = i;
      best_time = time;
    }
  }
  if (best) {
    algorithms_[product.key] = to_hex(candidates[*best]);
    write();
  }
  return best;
}

void GemmTuning::write() const {
  std::string text;
  for (const auto& [key, digits] : algorithms_) {
    text += fmt::format("{}\t{}\n", key, digits);
  }
  write_file_atomically(file_, text);
}

}  // namespace fp8train::ops::cuda
