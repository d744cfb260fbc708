// Compiled once per CPU level. The arithmetic is in ops/exchange/wire_math.h.

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/op_table.h"
#include "ops/exchange/wire_formats.h"
#include "ops/exchange/wire_math.h"
#include "ops/storage/stored_runs_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

static_assert(std::ranges::all_of(kWireGroups,
                                  [](int group) { return kStoredPiece % group == 0; }));
static_assert(std::ranges::all_of(WireCodes::kTypes, [](DType code) { return size_of(code) == 1; }),
              "codes are copied as bytes");

/// A piece of a chunk: elements begin .. begin + length - 1 of chunk `chunk`. They are elements
/// `element` and on of the tensor, which has the first `present` of them.
struct ChunkPiece {
  int64_t chunk, begin, length;
  int64_t element, present;
};

/// body(piece) for pieces of whole groups of the chunks that `call` names in a tensor of `count`
/// elements, over the threads.
template <typename Call, typename Body>
FP8TRAIN_HD void for_each_piece(const Call& call, int64_t count, Body body) {
  const int64_t pieces = ceil_div(call.chunk, kStoredPiece);
  const int64_t all = pieces * call.chunks;
#pragma omp parallel for schedule(static) if (call.chunk * call.chunks >= kParallelElements)
  for (int64_t index = 0; index < all; ++index) {
    const int64_t chunk = index / pieces;
    const int64_t begin = index % pieces * kStoredPiece;
    const int64_t length = minimum(kStoredPiece, call.chunk - begin);
    const int64_t element = chunk_begin(call.range, call.chunk, chunk) + begin;
    const int64_t left = count - element;
    body(ChunkPiece{chunk, begin, length, element, left < 0 ? 0 : minimum(length, left)});
  }
}

/// The types that a packet may have.
template <typename Body>
FP8TRAIN_HD void with_packet_type(DType dtype, Body body) {
  WireCodes::has(dtype) ? WireCodes::with(dtype, body) : PlainWireTypes::with(dtype, body);
}

/// Writes the codes and the scales of a piece into its packet. values: [piece.length].
template <typename Code>
FP8TRAIN_HD void encode_groups(const WireLayout& layout, const float* values,
                               const ChunkPiece& piece, uint8_t* packet) {
  Code* codes = reinterpret_cast<Code*>(packet) + piece.begin;
  const int64_t run = layout.scaled ? layout.group : piece.length;
  for (int64_t at = 0; at < piece.length; at += run) {
    const int64_t here = minimum(run, piece.length - at);
    float scale = 1.0F;
    if (layout.scaled) {
      scale = wire_scale(float_of(largest_magnitude(values + at, here)), layout.largest_code,
                         layout.pow2);
      write_wire_scale(layout, packet, (piece.begin + at) / layout.group, scale);
    }
    encode_chunk(values + at, scale, codes + at, here);
  }
}

/// Copies the groups of a tensor whose codes and scales are the wire's already.
FP8TRAIN_HD void copy_groups(const WireLayout& layout, const StoredTensor& x,
                             const ChunkPiece& piece, uint8_t* packet) {
  std::memset(packet + piece.begin, 0, static_cast<size_t>(piece.length));
  std::memcpy(packet + piece.begin, x.codes.as<uint8_t>() + piece.element,
              static_cast<size_t>(piece.present));
  for (int64_t at = 0; at < piece.length; at += layout.group) {
    const float* scales = x.scales.as<float>() + (piece.element + at) / layout.group;
    write_wire_scale(layout, packet, (piece.begin + at) / layout.group,
                     at < piece.present ? copied_scale(*scales) : 1.0F);
  }
}

/// sum += codes * factor.
template <typename Code>
FP8TRAIN_HD void add_run(const Code* __restrict codes, float factor, float* __restrict sum,
                         int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] += decode(codes[i]) * factor;
  }
}

/// Adds elements begin .. begin + length - 1 of a packet to sum [length], or with `first` writes
/// them there.
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

/// Adds the contribution that is not in a packet to `sum`, or begins the sum with it (`first`).
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

/// y = sum * factor, rounded.
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
  for_each_piece(call, call.x.count(), [&](const ChunkPiece& piece) {
    uint8_t* packet = static_cast<uint8_t*>(call.packets) +
                      packet_position(piece.chunk, call.chunks, call.inner) * layout.packet_bytes;
    if (copied) {
      copy_groups(layout, call.x, piece, packet);
      return;
    }
    float values[kStoredPiece] = {};
    if (piece.present > 0) {
      load_run(call.x, piece.element, piece.present, values);
    }
    with_packet_type(call.format.dtype, [&](auto tag) {
      encode_groups<typename decltype(tag)::Type>(layout, values, piece, packet);
    });
  });
}

void sum_wire(Stream /*stream*/, const SumWire& call) {
  const WireLayout layout = wire_layout(call.format, call.chunk);
  const int64_t stride = call.chunks * layout.packet_bytes;
  for_each_piece(call, call.y.count(), [&](const ChunkPiece& piece) {
    float sum[kStoredPiece] = {};
    const auto* packet =
        static_cast<const uint8_t*>(call.packets) + piece.chunk * layout.packet_bytes;
    for (int64_t r = 0; r < call.contributions; ++r, packet += stride) {
      if (r == call.exact_index) {
        add_exact(call.exact, piece.element, piece.present, r == 0, sum);
        continue;
      }
      with_packet_type(call.format.dtype, [&](auto tag) {
        add_piece<typename decltype(tag)::Type>(layout, packet, piece.begin, piece.present, r == 0,
                                                sum);
      });
    }
    with_float_type(call.y.dtype, [&](auto tag) {
      auto* const y = call.y.as<typename decltype(tag)::Type>() + piece.element;
      write_scaled(sum, call.factor, y, piece.present);
    });
  });
}

void unpack_wire(Stream /*stream*/, const UnpackWire& call) {
  const StoredTensor& y = call.y;
  const WireLayout layout = wire_layout(y.format, call.chunk);
  for_each_piece(call, y.count(), [&](const ChunkPiece& piece) {
    const auto* packet =
        static_cast<const uint8_t*>(call.packets) + piece.chunk * layout.packet_bytes;
    std::memcpy(y.codes.as<uint8_t>() + piece.element, packet + piece.begin,
                static_cast<size_t>(piece.present));
    for (int64_t at = 0; at < piece.present; at += layout.group) {
      y.scales.as<float>()[(piece.element + at) / layout.group] =
          scale_to_store(read_wire_scale(layout, packet, (piece.begin + at) / layout.group));
    }
  });
}

void combine_ranks(Stream /*stream*/, ConstView parts, Combine how, View y) {
  y.dtype == DType::f32 ? combine_as<uint32_t, float>(parts, how, y)
                        : combine_as<uint64_t, double>(parts, how, y);
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
