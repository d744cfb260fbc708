#include "ops/exchange/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/math.h"
#include "ops/dispatch/op_table.h"
#include "ops/exchange/wire_checks.h"
#include "ops/exchange/wire_formats.h"
#include "ops/exchange/wire_math.h"
#include "ops/support/in_pairs.h"
#include "tensor/level_formats.h"

namespace fp8train::ops {
namespace {

bool is_summed_type(DType dtype) {
  return PlainWireTypes::has(dtype);
}

bool is_wire_group(const ScaleBlock& block) {
  return std::any_of(std::begin(kWireGroups), std::end(kWireGroups),
                     [&](int group) { return block == per::group(group); });
}

std::string text_of(DType dtype) {
  return std::string(name_of(dtype));
}
std::string text_of(int group) {
  return fmt::format("group({})", group);
}

/// "a, b or c" with `last` = " or ".
template <typename Items>
std::string listed(const Items& items, const char* last) {
  std::string all;
  for (size_t i = 0; i < std::size(items); ++i) {
    all += i == 0 ? "" : i + 1 == std::size(items) ? last : ", ";
    all += text_of(items[i]);
  }
  return all;
}

}  // namespace

WireScale wire_scale_of(ScaleType type) {
  return {.bytes = facts_of(type).packet_bytes, .pow2 = is_exponent(type)};
}

bool is_wire_format(const TensorFormat& format) {
  if (!format.is_scaled()) {
    return is_summed_type(format.dtype) && format == plain(format.dtype);
  }
  if (is_level_format(format)) {
    return true;
  }
  return WireCodes::has(format.dtype) && is_wire_group(format.block) &&
         format.policy == ScalePolicy::current && wire_scale_of(format.scale_type).bytes > 0 &&
         !format.hadamard && !format.expanded && format.amax_epsilon == 0 &&
         format.rounding == Rounding::nearest_even;
}

std::string gradient_wires_text() {
  return fmt::format("{}, {} with a scale for the tensor, {} with one for {}, or {}",
                     listed(PlainWireTypes::kTypes, ", "), listed(Fp8Types::kTypes, " or "),
                     listed(WireCodes::kTypes, " or "), listed(kWireGroups, " or "),
                     level_formats_text());
}

WireLayout wire_layout(const TensorFormat& format, int64_t chunk) {
  const WireScale scale = wire_scale_of(format.scale_type);
  WireLayout layout = {.chunk = chunk,
                       .scales_at = static_cast<int64_t>(storage_bytes(format.dtype, {chunk})),
                       .code_bits = facts_of(format.dtype).bits,
                       .largest_code = format_max(format.dtype)};
  layout.packet_bytes = layout.scales_at;
  if (format.is_scaled()) {
    layout.group = format.block.columns;
    layout.scaled = true;
    layout.pow2 = scale.pow2;
    layout.two_level = is_level_format(format);
    layout.scale_bytes = layout.two_level ? level_scale_bytes(format) : scale.bytes;
    check(layout.scale_bytes > 0, "wire_layout: no packet has such scales");
    layout.packet_bytes += ceil_div(chunk, layout.group) * layout.scale_bytes;
  }
  layout.packet_bytes = round_up(layout.packet_bytes, kWireAlignment);
  return layout;
}

int64_t wire_bytes(const TensorFormat& format, int64_t count) {
  return wire_layout(format, count).packet_bytes;
}

void pack_wire(Stream stream, const PackWire& call) {
  check(is_wire_format(call.format), "pack_wire: nothing crosses a wire in this format");
  check(call.x.format == call.format || is_float_type(call.x.codes.dtype),
        "pack_wire: x must be fp32, bf16 or fp16, or in the wire's format");
  check(call.x.format.is_scaled() == (call.x.format == call.format && call.format.is_scaled()),
        "pack_wire: scales of x must be the wire's");
  check(call.packets != nullptr, "packets on a wire need memory");
  check_chunk_range(call.range, call.chunk, call.chunks, call.x.count());
  check(call.inner > 0 && call.chunks % call.inner == 0,
        "pack_wire: `inner` divides the number of chunks");
  dispatch<&OpTable::pack_wire>(stream, call);
}

void sum_wire(Stream stream, const SumWire& call) {
  check(is_wire_format(call.format), "sum_wire: nothing crosses a wire in this format");
  check(is_summed_type(call.y.dtype), "sum_wire: y must have a type that crosses without scales");
  check(call.packets != nullptr, "packets on a wire need memory");
  check_chunk_range(call.range, call.chunk, call.chunks, call.y.count());
  check(call.contributions > 0 && call.exact_index < call.contributions,
        "sum_wire: at least one contribution");
  check(call.exact_index < 0 ||
            (is_summed_type(call.exact.dtype) && call.exact.count() == call.y.count()),
        "sum_wire: the exact contribution has such a type, and as many elements as y");
  dispatch<&OpTable::sum_wire>(stream, call);
}

void unpack_wire(Stream stream, const UnpackWire& call) {
  check(is_wire_format(call.y.format) && call.y.format.is_scaled(),
        "unpack_wire: y must be codes with a scale for each group");
  check(call.packets != nullptr, "packets on a wire need memory");
  check_chunk_range(call.range, call.chunk, call.chunks, call.y.count());
  dispatch<&OpTable::unpack_wire>(stream, call);
}

void combine_ranks(Stream stream, ConstView parts, Combine how, View y) {
  const bool narrow =
      how == Combine::pairs && is_summed_type(parts.dtype) && is_float_type(y.dtype);
  check(narrow || (parts.dtype == y.dtype && (y.dtype == DType::f32 || y.dtype == DType::f64)),
        "combine_ranks: fp32 or fp64 expected");
  check(y.count() > 0 && parts.count() % y.count() == 0,
        "combine_ranks: parts are whole copies of y");
  check(how != Combine::pairs || parts.count() / y.count() <= kMaxPaired,
        "combine_ranks: too many parts to add in pairs");
  dispatch<&OpTable::combine_ranks>(stream, parts, how, y);
}

}  // namespace fp8train::ops
