#include "device/meta/meta_device.h"

#include "device/meta/repeated_calls.h"

#include <cstring>

#include "base/math.h"
#include "base/trace.h"

namespace fp8train {

MetaDevice::MetaDevice(const DeviceTraits& traits, std::optional<Stream> planned)
    : Device(DeviceKind::meta, &context_, traits), context_{planned, nullptr, this} {
  if (traits.library_workspace > 0) {
    ledger().add(MemoryCategory::workspace, traits.library_workspace);
  }
}

namespace {

void* take_addresses(size_t bytes, uintptr_t& next) {
  if (bytes == 0) {
    return nullptr;
  }
  const uintptr_t address = next;
  next += round_up(bytes, 256);
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

void* MetaDevice::allocate(size_t bytes) {
  return take_addresses(bytes, next_address_);
}

void* MetaDevice::allocate_on_host(size_t bytes) {
  return take_addresses(bytes, next_on_host_);
}

void MetaDevice::copy_from_host(void* /*to*/, const void* /*from*/, size_t bytes) {
  log_call(stream(), {.bytes = static_cast<double>(bytes)}, "copy_from_host");
}

void MetaDevice::copy_to_host(void* to, const void* /*from*/, size_t bytes) {
  std::memset(to, 0, bytes);
}

void MetaDevice::copy(const Stream& stream, void* /*to*/, const void* /*from*/, size_t bytes) {
  const auto of_host = static_cast<double>(bytes);
  log_call(stream, {.bytes = {2 * of_host, of_host}}, kSideCopy);
}

void MetaDevice::fill_zero(void* /*pointer*/, size_t bytes) {
  log_call(stream(), {.bytes = static_cast<double>(bytes)}, "fill_zero");
}

void log_call(const Stream& meta, const OpWork& work, const char* name) {
  OpLog* const log = meta_context(meta).log;
  if (log == nullptr) {
    return;
  }
  const std::vector<const char*> spans = open_spans();
  const size_t of_call = name == nullptr ? 1 : 0;  // an operation's own span
  log->push_back({.part = spans.size() > of_call ? spans.front() : "",
                  .name = name != nullptr ? name : (spans.empty() ? "" : spans.back()),
                  .work = work});
}

void add_times(OpCounters& total, const OpCounters& from, const OpCounters& to, int64_t times) {
  const auto factor = static_cast<double>(times);
  total.gemm_flops += factor * (to.gemm_flops - from.gemm_flops);
  total.gemm_flops_8bit += factor * (to.gemm_flops_8bit - from.gemm_flops_8bit);
  total.attention_flops += factor * (to.attention_flops - from.attention_flops);
  total.bytes += factor * (to.bytes - from.bytes);
  total.operations += static_cast<uint64_t>(times) * (to.operations - from.operations);
}

RepeatedCalls::RepeatedCalls(const Stream& meta, int64_t times)
    : stream_(meta), times_(times), before_(meta.counters()) {
  if (const OpLog* const log = meta_context(stream_).log; log != nullptr) {
    logged_before_ = log->size();
  }
}

RepeatedCalls::~RepeatedCalls() {
  add_times(stream_.counters(), before_, stream_.counters(), times_ - 1);
  if (OpLog* const log = meta_context(stream_).log; log != nullptr) {
    for (size_t i = logged_before_; i < log->size(); ++i) {
      (*log)[i].times *= times_;
    }
  }
}

}  // namespace fp8train
