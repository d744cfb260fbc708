// Compiled once per x86-64 level. The arithmetic is in ops/wire_math.h.

#include <cstring>

#include "base/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/op_table.h"
#include "ops/exchange/wire_formats.h"
#include "ops/exchange/wire_math.h"
#include "ops/storage/stored_runs_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// body(chunk, begin within it, length) for pieces of whole groups, over the threads.
template <typename Body>
FP8TRAIN_HD void for_each_piece(int64_t chunk, int64_t chunks, Body body) {
  const int64_t pieces = ceil_div(chunk, kStoredPiece);
  const int64_t all = pieces * chunks;
#pragma omp parallel for schedule(static) if (chunk * chunks >= kParallelElements)
  for (int64_t index = 0; index < all; ++index) {
    const int64_t begin = index % pieces * kStoredPiece;
    body(index / pieces, begin, minimum(kStoredPiece, chunk - begin));
  }
}

/// The types that a packet may have.
template <typename Body>
FP8TRAIN_HD void with_packet_type(DType dtype, Body body) {
  WireCodes::has(dtype) ? WireCodes::with(dtype, body) : PlainWireTypes::with(dtype, body);
}

/// Elements that exist of `length` from `from` on.
FP8TRAIN_HD int64_t existing(int64_t count, int64_t from, int64_t length) {
  const int64_t left = count - from;
  return left < 0 ? 0 : minimum(length, left);
}

template <typename Code>
FP8TRAIN_HD void encode_scaled(const float* __restrict values, float scale, Code* __restrict codes,
                               int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = encode<Code>(values[i] * scale);
  }
}

template <typename Code>
FP8TRAIN_HD void encode_groups(const WireLayout& layout, const float* values, int64_t begin,
                               int64_t length, uint8_t* packet) {
  Code* codes = reinterpret_cast<Code*>(packet) + begin;
  const int64_t run = layout.scaled ? layout.group : length;
  for (int64_t at = 0; at < length; at += run) {
    const int64_t here = minimum(run, length - at);
    float scale = 1.0F;
    if (layout.scaled) {
      scale = wire_scale(float_of(largest_magnitude(values + at, here)), layout.largest_code,
                         layout.pow2);
      write_wire_scale(layout, packet, (begin + at) / layout.group, scale);
    }
    encode_scaled(values + at, scale, codes + at, here);
  }
}

/// Codes and scales that are the wire's already.
FP8TRAIN_HD void copy_groups(const WireLayout& layout, const StoredTensor& x, int64_t from,
                             int64_t present, int64_t begin, int64_t length, uint8_t* packet) {
  std::memset(packet + begin, 0, static_cast<size_t>(length));
  std::memcpy(packet + begin, x.codes.as<uint8_t>() + from, static_cast<size_t>(present));
  for (int64_t at = 0; at < length; at += layout.group) {
    const float* scales = x.scales.as<float>() + (from + at) / layout.group;
    write_wire_scale(layout, packet, (begin + at) / layout.group,
                     at < present ? copied_scale(*scales) : 1.0F);
  }
}

template <typename Code>
FP8TRAIN_HD void add_run(const Code* __restrict codes, float factor, float* __restrict sum,
                         int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] += decode(codes[i]) * factor;
  }
}

/// One contribution to a piece.
template <typename Code>
FP8TRAIN_HD void add_piece(const WireLayout& layout, const uint8_t* packet, int64_t begin,
                           int64_t length, bool first, float* sum) {
  const Code* codes = reinterpret_cast<const Code*>(packet) + begin;
  const int64_t run = layout.scaled ? layout.group : length;
  for (int64_t at = 0; at < length; at += run) {
    const float factor =
        layout.scaled ? reciprocal(read_wire_scale(layout, packet, (begin + at) / layout.group))
                      : 1.0F;
    const int64_t here = minimum(run, length - at);
    if (first) {
      decode_run(codes + at, factor, sum + at, here);
    } else {
      add_run(codes + at, factor, sum + at, here);
    }
  }
}

FP8TRAIN_HD void add_exact(const ConstView& exact, int64_t from, int64_t length, bool first,
                           float* sum) {
  with_float_type(exact.dtype, [&](auto tag) {
    const auto* values = exact.as<typename decltype(tag)::Type>() + from;
    for (int64_t i = 0; i < length; ++i) {
      const float value = load_as_float(values + i);
      sum[i] = first ? value : sum[i] + value;
    }
  });
}

template <typename Y>
FP8TRAIN_HD void write_scaled(const float* __restrict sum, float factor, Y* __restrict y,
                              int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    store_from_float(y + i, sum[i] * factor);
  }
}

template <typename Bits, typename T>
FP8TRAIN_HD void combine_as(const ConstView& parts, Combine how, const View& y) {
  const int64_t count = y.count();
  const int64_t ranks = parts.count() / count;
  for (int64_t i = 0; i < count; ++i) {
    y.as<T>()[i] = combined<Bits>(parts.as<T>(), ranks, count, i, how);
  }
}

}  // namespace

void pack_wire(Stream /*stream*/, const PackWire& call) {
  const WireLayout layout = wire_layout(call.format, call.chunk);
  const bool copied = layout.scaled && call.x.format == call.format;
  const int64_t count = call.x.count();
  for_each_piece(call.chunk, call.chunks, [&](int64_t c, int64_t begin, int64_t length) {
    const int64_t from = chunk_begin(call.range, call.chunk, c) + begin;
    const int64_t present = existing(count, from, length);
    uint8_t* packet = static_cast<uint8_t*>(call.packets) +
                      packet_position(c, call.chunks, call.inner) * layout.packet_bytes;
    if (copied) {
      copy_groups(layout, call.x, from, present, begin, length, packet);
      return;
    }
    float values[kStoredPiece] = {};
    if (present > 0) {
      load_run(call.x, from, present, values);
    }
    with_packet_type(call.format.dtype, [&](auto tag) {
      encode_groups<typename decltype(tag)::Type>(layout, values, begin, length, packet);
    });
  });
}

void sum_wire(Stream /*stream*/, const SumWire& call) {
  const WireLayout layout = wire_layout(call.format, call.chunk);
  const int64_t stride = call.chunks * layout.packet_bytes;
  for_each_piece(call.chunk, call.chunks, [&](int64_t c, int64_t begin, int64_t whole) {
    const int64_t from = chunk_begin(call.range, call.chunk, c) + begin;
    const int64_t length = existing(call.y.count(), from, whole);
    float sum[kStoredPiece] = {};
    const auto* packet = static_cast<const uint8_t*>(call.packets) + c * layout.packet_bytes;
    for (int64_t r = 0; r < call.contributions; ++r, packet += stride) {
      if (r == call.exact_index) {
        add_exact(call.exact, from, length, r == 0, sum);
        continue;
      }
      with_packet_type(call.format.dtype, [&](auto tag) {
        add_piece<typename decltype(tag)::Type>(layout, packet, begin, length, r == 0, sum);
      });
    }
    with_float_type(call.y.dtype, [&](auto tag) {
      write_scaled(sum, call.factor, call.y.as<typename decltype(tag)::Type>() + from, length);
    });
  });
}

void unpack_wire(Stream /*stream*/, const UnpackWire& call) {
  const StoredTensor& y = call.y;
  const WireLayout layout = wire_layout(y.format, call.chunk);
  for_each_piece(call.chunk, call.chunks, [&](int64_t c, int64_t begin, int64_t whole) {
    const int64_t to = chunk_begin(call.range, call.chunk, c) + begin;
    const int64_t length = existing(y.count(), to, whole);
    const auto* packet = static_cast<const uint8_t*>(call.packets) + c * layout.packet_bytes;
    std::memcpy(y.codes.as<uint8_t>() + to, packet + begin, static_cast<size_t>(length));
    for (int64_t at = 0; at < length; at += layout.group) {
      y.scales.as<float>()[(to + at) / layout.group] =
          scale_to_store(read_wire_scale(layout, packet, (begin + at) / layout.group));
    }
  });
}

void combine_ranks(Stream /*stream*/, ConstView parts, Combine how, View y) {
  y.dtype == DType::f32 ? combine_as<uint32_t, float>(parts, how, y)
                        : combine_as<uint64_t, double>(parts, how, y);
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
