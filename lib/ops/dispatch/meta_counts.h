#pragma once
// How operations of the meta device count their work.

#include "device/meta/meta_device.h"
#include "device/stream.h"
#include "ops/dispatch/meta_operations.h"
#include "tensor/view.h"

namespace fp8train::ops::meta {

/// Returns the bytes that a pass over the view moves; 0 if it is empty.
inline OpBytes bytes_of(const ConstView& view) {
  const double bytes = view.empty() ? 0.0 : static_cast<double>(view.bytes());
  return {bytes, is_on_host(view.data) ? bytes : 0.0};
}

/// Returns the bytes of `rows` positions of all heads of a view.
inline double bytes_of(const HeadsView& view, int64_t rows, int64_t heads, int64_t head_dim) {
  return static_cast<double>(rows * heads * head_dim) * static_cast<double>(size_of(view.dtype));
}

/// Returns the bytes of the codes that a cast writes.
inline OpBytes bytes_of(const QuantizeSink& cast) {
  return bytes_of(cast.out.rowwise.codes) + bytes_of(cast.out.columnwise.codes);
}

/// Returns the bytes of the codes and the scales of a stored tensor.
inline OpBytes stored_bytes(const Encoded& tensor) {
  return bytes_of(tensor.codes) + bytes_of(tensor.scales);
}

/// Counts the work of one operation and adds it to the log.
inline void count(const Stream& stream, const OpWork& work) {
  stream.counters().bytes += work.bytes.all;
  stream.counters().operations += 1;
  log_call(stream, work);
}
/// Counts one kernel that moves `bytes` bytes.
inline void count(const Stream& stream, const OpBytes& bytes) {
  count(stream, OpWork{.bytes = bytes});
}
/// Counts an operation whose time follows from `kernel`, a name in the table of kernels, for
/// `elements` elements.
inline void count(const Stream& stream, const OpBytes& bytes, const char* kernel, int64_t elements,
                  int launches = 1) {
  count(stream, OpWork{.bytes = bytes,
                       .launches = launches,
                       .kernel = kernel,
                       .elements = static_cast<double>(elements)});
}

/// Whether the tensor has one scale, for which a pass over the new values finds the amax first.
inline bool scaled_by_tensor(const Encoded& tensor) {
  return codec_of(tensor.format) == Codec::tensor;
}

}  // namespace fp8train::ops::meta
