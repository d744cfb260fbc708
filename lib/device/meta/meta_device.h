#pragma once
// Allocates nothing and computes nothing: buffers are charged to the ledger and get addresses that
// are never read. Memory that the planned device allocates at its start is charged too.

#include <optional>

#include "device/device.h"
#include "device/meta/op_log.h"

namespace fp8train {

/// The context to which Stream::native() of a meta stream points.
struct MetaContext {
  std::optional<Stream> planned;  ///< the stream that is planned for, if there is one
  OpLog* log = nullptr;           ///< receives every call; null: none does
  const Device* device = nullptr;
};

class MetaDevice final : public Device {
 public:
  static constexpr uintptr_t kHostAddresses = uintptr_t{1} << 56;  ///< the first of them

  explicit MetaDevice(const DeviceTraits& traits = {}, std::optional<Stream> planned = {});

  /// Adds every operation, fill and copy from the host from now on to `log`, which the caller owns;
  /// null ends it. Parts and names of calls are taken from open spans: tracing must be on
  /// (base/trace.h).
  void set_log(OpLog* log) { context_.log = log; }

  void* allocate(size_t bytes) override;
  void deallocate(void* /*pointer*/, size_t /*bytes*/) noexcept override {}
  void* allocate_on_host(size_t bytes) override;
  void copy_from_host(void* to, const void* from, size_t bytes) override;
  void copy_to_host(void* to, const void* from, size_t bytes) override;
  void copy(const Stream& stream, void* to, const void* from, size_t bytes) override;
  void fill_zero(void* pointer, size_t bytes) override;
  void synchronize() override {}
  size_t available_memory() const override { return 0; }
  std::string description() const override { return "meta: counts, computes nothing"; }

 private:
  MetaContext context_;
  uintptr_t next_address_ = uintptr_t{1} << 40;
  uintptr_t next_on_host_ = kHostAddresses;
};

/// Whether memory of a meta device is that of the host.
inline bool is_on_host(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) >= MetaDevice::kHostAddresses;
}

inline const MetaContext& meta_context(const Stream& meta) {
  return *static_cast<const MetaContext*>(meta.native());
}

/// Returns the stream that a meta stream plans for, if there is one.
inline const std::optional<Stream>& planned_stream(const Stream& meta) {
  return meta_context(meta).planned;
}

/// Adds a call to the log of the stream's device, if it has one. Its part is the outermost open
/// span. Without a `name` it has that of the innermost open span.
void log_call(const Stream& meta, const OpWork& work, const char* name = nullptr);

}  // namespace fp8train
