#pragma once
// The dispatch of operations: each backend (cpu at each CPU level, cuda, meta) has one table of
// functions with the signatures of the public headers, and op_table() chooses it. Shapes and types
// have been checked before. Headers of operations never include this one.

#include <utility>

#include "base/trace.h"
#include "ops/attention/attention.h"
#include "ops/attention/copy_rows.h"
#include "ops/cast/blockwise_parts.h"
#include "ops/cast/quantize.h"
#include "ops/exchange/shared_wire.h"
#include "ops/exchange/wire.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"
#include "ops/loss/cross_entropy.h"
#include "ops/norm/norm.h"
#include "ops/optimizer/optimizer.h"
#include "ops/pointwise/activation.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/embedding.h"
#include "ops/pointwise/smoothing.h"
#include "ops/routing/router.h"
#include "ops/routing/token_rows.h"
#include "ops/storage/storage.h"

namespace fp8train::ops {

/// The functions of one device, one for each line of operations.def.
struct OpTable {
#define FP8TRAIN_OPERATION(name) decltype(&ops::name) name;
#include "ops/dispatch/operations.def"
};

/// Throws DeviceError when the device has no operations in this build.
const OpTable& op_table(const Stream& stream);
inline const OpTable& op_table(const Device& device) {
  return op_table(device.stream());
}

/// The name of an entry: kNameOf<&OpTable::gemm>.
template <auto operation>
inline constexpr const char* kNameOf = nullptr;
#define FP8TRAIN_OPERATION(name) \
  template <>                    \
  inline constexpr const char* kNameOf<&OpTable::name> = #name;
#include "ops/dispatch/operations.def"

/// Calls the backend's function of a stream or a device inside a trace span, whose name is a
/// literal.
template <auto operation, typename On, typename... Arguments>
decltype(auto) dispatch_as(const char* name, On&& on, Arguments&&... arguments) {
  const TraceSpan span(name);
  return (op_table(on).*operation)(on, std::forward<Arguments>(arguments)...);
}
/// Calls the operation in a trace span of the operation's name: dispatch<&OpTable::gemm>(stream,
/// call).
template <auto operation, typename On, typename... Arguments>
decltype(auto) dispatch(On&& on, Arguments&&... arguments) {
  return dispatch_as<operation>(kNameOf<operation>, on, std::forward<Arguments>(arguments)...);
}

}  // namespace fp8train::ops
