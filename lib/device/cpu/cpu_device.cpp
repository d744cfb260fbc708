#include "device/cpu/cpu_device.h"

#include <fmt/format.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <new>
#include <thread>

#include "base/error.h"
#include "base/machine.h"
#include "base/math.h"
#include "numeric/cpu_isa.h"

namespace fp8train {
namespace {

constexpr std::align_val_t kBufferAlignment{256};

/// Copies past the caches, for copies that are read much later: a fifth less time for memory that
/// is larger than the caches.
void copy_past_caches(char* to, const char* from, size_t bytes) {
#ifdef __SSE2__
  constexpr size_t kLine = 64;
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0) {
    for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) {
      const auto* read = reinterpret_cast<const __m128i*>(from);
      auto* write = reinterpret_cast<__m128i*>(to);
      const __m128i parts[4] = {_mm_loadu_si128(read), _mm_loadu_si128(read + 1),
                                _mm_loadu_si128(read + 2), _mm_loadu_si128(read + 3)};
      for (size_t i = 0; i < 4; ++i) {
        _mm_stream_si128(write + i, parts[i]);
      }
    }
    _mm_sfence();
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

void* CpuDevice::allocate(size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  void* pointer = ::operator new(bytes, kBufferAlignment, std::nothrow);
  if (pointer == nullptr) {
    throw DeviceError(fmt::format(
        "out of memory: asked for {} bytes with {} in use; lower training.micro_batch_size or "
        "data.seq_length, or set model.recompute: block",
        bytes, ledger().total()));
  }
  return pointer;
}

void CpuDevice::deallocate(void* pointer, size_t /*bytes*/) noexcept {
  ::operator delete(pointer, kBufferAlignment);
}

void CpuDevice::copy_from_host(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

/// Memory is faster than one thread of a processor: the state of a run is copied by all of them.
void CpuDevice::copy_to_host(void* to, const void* from, size_t bytes) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  const auto size = static_cast<int64_t>(bytes);
  if (size < kChunk) {
    if (size > 0) {
      std::memcpy(to, from, bytes);
    }
    return;
  }
  const int64_t chunks = ceil_div(size, kChunk);
#pragma omp parallel for schedule(dynamic) if (chunks > 1)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * kChunk;
    copy_past_caches(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                     static_cast<size_t>(std::min(kChunk, size - begin)));
  }
}

void CpuDevice::fill_zero(void* pointer, size_t bytes) {
  if (bytes > 0) {  // an empty buffer has no address
    std::memset(pointer, 0, bytes);
  }
}

size_t CpuDevice::available_memory() const {
  std::ifstream info("/proc/meminfo");
  for (std::string name, unit; info >> name;) {
    size_t kibibytes = 0;
    if (!(info >> kibibytes) || !std::getline(info, unit)) {
      break;
    }
    if (name == "MemAvailable:") {
      return kibibytes << 10;
    }
  }
  return 0;
}

std::string CpuDevice::description() const {
  const std::string name = processor_name();
  return fmt::format("cpu: {}, {} hardware threads, kernels for {}",
                     name.empty() ? "unknown processor" : name, std::thread::hardware_concurrency(),
                     name_of(cpu_isa()));
}

}  // namespace fp8train
