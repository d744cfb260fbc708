// Compiled once per CPU level. The arithmetic is in numeric/codec.h and ops/exchange/wire_math.h.

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/op_table.h"
#include "ops/exchange/wire_formats.h"
#include "ops/exchange/wire_math.h"
#include "ops/storage/stored_runs_cpu.h"
#include "ops/support/in_pairs.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

static_assert(std::ranges::all_of(kWireGroups,
                                  [](int group) { return kStoredPiece % group == 0; }));

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

/// A packet as a tensor: scales that are powers of two lie in a byte each.
FP8TRAIN_HD Encoded packet_at(const WireLayout& layout, const TensorFormat& format,
                              const uint8_t* packet) {
  auto* const bytes = const_cast<uint8_t*>(packet);
  Encoded tensor({bytes, format.dtype, {layout.chunk}}, format, {});
  if (layout.scaled) {
    const DType type = layout.scale_bytes == 1 ? DType::u8 : DType::f32;
    const int64_t all = ceil_div(layout.chunk, layout.group) * layout.scale_bytes;
    tensor.scales = {bytes + layout.scales_at, type, {all / static_cast<int64_t>(size_of(type))}};
  }
  return tensor;
}

/// The bytes of the codes of `count` elements.
FP8TRAIN_HD int64_t code_bytes(const WireLayout& layout, int64_t count) {
  return ceil_div(count * layout.code_bits, 8);
}

/// Copies the groups of a tensor whose codes and scales are the wire's already.
FP8TRAIN_HD void copy_groups(const WireLayout& layout, const Encoded& x, const ChunkPiece& piece,
                             uint8_t* packet) {
  uint8_t* const codes = packet + code_bytes(layout, piece.begin);
  std::memset(codes, 0, static_cast<size_t>(code_bytes(layout, piece.length)));
  std::memcpy(codes, x.codes.as<uint8_t>() + code_bytes(layout, piece.element),
              static_cast<size_t>(code_bytes(layout, piece.present)));
  for (int64_t at = 0; at < piece.length; at += layout.group) {
    send_scale(layout, x.scales.data, (piece.element + at) / layout.group, at < piece.present,
               packet, (piece.begin + at) / layout.group);
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

template <typename X, typename Y>
FP8TRAIN_HD void add_in_pairs(const X* parts, int64_t ranks, int64_t count, Y* y) {
  constexpr int kRun = 64;
  using Run = ValueRun<decltype(load_summand(parts)), kRun>;
  for_each_chunk<kRun>(count, [&](int64_t begin, int64_t end) {
    const Run sum = in_pairs(
        ranks,
        [&](int64_t rank) {
          Run run = {};
          for (int64_t i = begin; i < end; ++i) {
            run.values[i - begin] = load_summand(parts + rank * count + i);
          }
          return run;
        },
        AddRuns{});
    for (int64_t i = begin; i < end; ++i) {
      store_sum(y + i, sum.values[i - begin]);
    }
  });
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
    store_run(packet_at(layout, call.format, packet), piece.begin, piece.length,
              {.values = values, .packed = true});
  });
}

void sum_wire(Stream /*stream*/, const SumWire& call) {
  const WireLayout layout = wire_layout(call.format, call.chunk);
  const int64_t stride = call.chunks * layout.packet_bytes;
  for_each_piece(call, call.y.count(), [&](const ChunkPiece& piece) {
    float sum[kStoredPiece];
    float values[kStoredPiece];
    const auto* packet =
        static_cast<const uint8_t*>(call.packets) + piece.chunk * layout.packet_bytes;
    for (int64_t r = 0; r < call.contributions; ++r, packet += stride) {
      float* const to = r == 0 ? sum : values;
      if (r == call.exact_index) {
        load_run(read_only(call.exact), piece.element, piece.present, to);
      } else {
        load_run(packet_at(layout, call.format, packet), piece.begin, piece.present, to);
      }
      for (int64_t i = 0; r > 0 && i < piece.present; ++i) {
        sum[i] += values[i];
      }
    }
    store_run(call.y, piece.element, piece.present, {.values = sum, .tensor_scale = call.factor});
  });
}

void unpack_wire(Stream /*stream*/, const UnpackWire& call) {
  const Encoded& y = call.y;
  const WireLayout layout = wire_layout(y.format, call.chunk);
  for_each_piece(call, y.count(), [&](const ChunkPiece& piece) {
    const auto* packet =
        static_cast<const uint8_t*>(call.packets) + piece.chunk * layout.packet_bytes;
    std::memcpy(y.codes.as<uint8_t>() + code_bytes(layout, piece.element),
                packet + code_bytes(layout, piece.begin),
                static_cast<size_t>(code_bytes(layout, piece.present)));
    for (int64_t at = 0; at < piece.present; at += layout.group) {
      receive_scale(layout, packet, (piece.begin + at) / layout.group, y.scales.data,
                    (piece.element + at) / layout.group);
    }
  });
}

void combine_ranks(Stream /*stream*/, ConstView parts, Combine how, View y) {
  if (how == Combine::pairs) {
    return with_paired_types(parts.dtype, y.dtype, [&](auto from, auto to) {
      add_in_pairs(parts.as<typename decltype(from)::Type>(), parts.count() / y.count(), y.count(),
                   y.as<typename decltype(to)::Type>());
    });
  }
  y.dtype == DType::f32 ? combine_as<uint32_t, float>(parts, how, y)
                        : combine_as<uint64_t, double>(parts, how, y);
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
