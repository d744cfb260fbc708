// Packets of gradients. The arithmetic of numeric/codec.h and wire_math.h, bit for bit; sums run
// over the ranks in order within one thread.

#include <algorithm>
#include <bit>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/exchange/wire_formats.h"
#include "ops/exchange/wire_math.h"
#include "ops/storage/encoded.cuh"
#include "ops/support/in_pairs.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kQuad = 4;  // elements of one thread of a copy, or that packs without scales
constexpr int kOcto = 8;  // elements of one thread of a sum
constexpr int kGroup = kStoredBlock.columns;  // elements of a warp that copies codes
static_assert(kWarp * kQuad == kGroup);
static_assert(std::all_of(std::begin(kWireGroups), std::end(kWireGroups), [](int group) {
  return std::has_single_bit(static_cast<unsigned>(group)) && group % (2 * kWarp) == 0;
}));

/// Where the groups of all chunks are among the packets, and in the tensor. Span: elements of a
/// group; the last group of a chunk may have fewer.
struct PacketSlot {
  WireLayout layout;
  int64_t chunks, inner;
  ChunkRange range;

  template <int Span>
  __device__ __forceinline__ uint8_t* packet(void* packets, int64_t group, int64_t& within) const {
    const int64_t groups = ceil_div(layout.chunk, Span);
    within = group % groups;
    return static_cast<uint8_t*>(packets) +
           packet_position(group / groups, chunks, inner) * layout.packet_bytes;
  }
  template <int Span>
  __device__ __forceinline__ int64_t begin(int64_t group) const {
    const int64_t groups = ceil_div(layout.chunk, Span);
    return chunk_begin(range, layout.chunk, group / groups) + group % groups * Span;
  }
};

/// A warp has a group of N elements for each lane.
template <typename Code, int N, bool Aligned>
__global__ void __launch_bounds__(kBlock)
    pack_kernel(DeviceEncoded<false> x, int64_t count, PacketSlot slot, void* packets) {
  constexpr int kSpan = kWarp * N;
  const int64_t chunk = slot.layout.chunk;
  for_each_span<1>(slot.chunks * ceil_div(chunk, kSpan), [&](int64_t group) {
    int64_t within = 0;
    uint8_t* packet = slot.packet<kSpan>(packets, group, within);
    const int64_t begin = slot.begin<kSpan>(group);
    const int64_t in_chunk = within * kSpan + lane_index() * N;
    const int64_t i = begin + lane_index() * N;
    float values[N];
    if (Aligned && begin + kSpan <= count && (within + 1) * kSpan <= chunk) {
      x.load<N, true>(i, count - i, {}, values);
    } else {
      x.load<N, false>(i, in_chunk < chunk ? count - i : 0, {}, values);
    }
    float scale = 1.0F;
    if (slot.layout.scaled) {
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        largest = Largest{}(largest, bits_of(values[j]) & 0x7FFFFFFFU);
      }
      scale = stored_scale(float_of(warp_reduce(largest, Largest{})), quiet_nan(),
                           slot.layout.largest_code, slot.layout.pow2);
      if (lane_index() == 0) {
        write_scale(packet + slot.layout.scales_at, slot.layout.pow2, within, scale);
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] *= scale;
    }
    if (in_chunk < chunk) {
      store_pack(reinterpret_cast<Code*>(packet) + in_chunk, encode_pack<Code, N>(values));
    }
  });
}

/// The tensor in a packet of two_level_groups().
__device__ __forceinline__ DeviceEncoded<> packet_tensor(const WireLayout& layout,
                                                         const uint8_t* packet) {
  auto* const bytes = const_cast<uint8_t*>(packet);
  DeviceEncoded<> tensor = {};
  tensor.codes = bytes;
  tensor.scales = reinterpret_cast<float*>(bytes + layout.scales_at);
  tensor.grouped = tensor.two_level = true;
  return tensor;
}

/// Packs codes under scales of two levels. A warp has a group at a time.
__global__ void __launch_bounds__(kBlock)
    pack_levels_kernel(DeviceEncoded<false> x, int64_t count, PacketSlot slot, void* packets) {
  for_each_span<1>(slot.chunks * slot.layout.chunk / kGroup, [&](int64_t group) {
    int64_t within = 0;
    const DeviceEncoded<> to =
        packet_tensor(slot.layout, slot.packet<kGroup>(packets, group, within));
    const int64_t lane = lane_index() * kQuad;
    const int64_t i = slot.begin<kGroup>(group) + lane;
    float values[kQuad];
    x.load<kQuad, false>(i, count - i, {}, values);
    to.store<kQuad, true>(within * kGroup + lane, kQuad, to.new_scale(values, {}), 0, values, {});
  });
}

/// Packs codes and scales that are the wire's already; with Unpack, takes them out of packets. A
/// warp has a group at a time.
template <bool Unpack>
__global__ void __launch_bounds__(kBlock)
    copy_kernel(uint8_t* codes, float* scales, int64_t count, PacketSlot slot, void* packets) {
  const int in_byte = slot.layout.two_level ? 2 : 1;
  for_each_span<1>(slot.chunks * slot.layout.chunk / kGroup, [&](int64_t group) {
    int64_t within = 0;
    uint8_t* packet = slot.packet<kGroup>(packets, group, within);
    const int64_t begin = slot.begin<kGroup>(group);
    const int64_t i = begin + lane_index() * kQuad;
    uint8_t* in_packet = packet + (within * kGroup + lane_index() * kQuad) / in_byte;
    const bool exists = begin < count;
    float* scale = scales + begin / kGroup;
    if (lane_index() == 0 && slot.layout.two_level) {
      auto& stored = reinterpret_cast<GroupScales*>(scales)[begin / kGroup];
      auto& sent = reinterpret_cast<GroupScales*>(packet + slot.layout.scales_at)[within];
      if constexpr (!Unpack) {
        sent = exists ? stored : GroupScales{};
      } else if (exists) {
        stored = sent;
      }
    } else if (lane_index() == 0) {
      if constexpr (!Unpack) {
        write_scale(packet + slot.layout.scales_at, slot.layout.pow2, within,
                    exists ? copied_scale(*scale) : 1.0F);
      } else if (exists) {
        *scale =
            scale_to_store(read_scale(packet + slot.layout.scales_at, slot.layout.pow2, within));
      }
    }
#pragma unroll
    for (int j = 0; j < kQuad; j += in_byte) {
      if constexpr (!Unpack) {
        in_packet[j / in_byte] = i + j < count ? codes[(i + j) / in_byte] : uint8_t{0};
      } else if (i + j < count) {
        codes[(i + j) / in_byte] = in_packet[j / in_byte];
      }
    }
  });
}

/// Starts pack_kernel with groups of 32 N elements.
template <typename Code, int N>
void pack_as(const Stream& stream, const PackWire& call, const PacketSlot& slot) {
  const LaunchShape shape = {blocks_for(stream, call.chunk * call.chunks, kBlock * N), kBlock};
  const bool aligned = is_aligned(call.x.codes.data);
  launch(stream, shape, aligned ? pack_kernel<Code, N, true> : pack_kernel<Code, N, false>,
         encoded<false>(call.x), call.x.count(), slot, call.packets);
}

/// Starts the instance of pack_kernel for the wire's group.
template <typename Code, size_t... Index>
void pack_groups(const Stream& stream, const PackWire& call, const PacketSlot& slot,
                 std::index_sequence<Index...> /*indices*/) {
  const bool packed = ((slot.layout.group == kWireGroups[Index] &&
                        (pack_as<Code, kWireGroups[Index] / kWarp>(stream, call, slot), true)) ||
                       ...);
  check(packed, "pack_wire: no kernel for this group");
}

/// The arguments of sum_kernel: SumWire with its layout.
struct SumArguments {
  const uint8_t* packets;
  WireLayout layout;
  int64_t chunks, contributions, exact_index;
  DeviceEncoded<false> exact;  // of a type without scales
  float factor;
  ChunkRange range;
  int64_t count;    // of y
  int group_shift;  // a group has 2^group_shift elements
};

/// The values of the eight codes from element `within` of a packet on. They are aligned: packets
/// are, and threads start at whole eights.
template <typename Code>
__device__ __forceinline__ void load_octo(const SumArguments& call, const uint8_t* packet,
                                          int64_t within, float (&values)[kOcto]) {
  const float factor = call.layout.scaled
                           ? reciprocal(read_scale(packet + call.layout.scales_at, call.layout.pow2,
                                                   within >> call.group_shift))
                           : 1.0F;
  const Code* const codes = reinterpret_cast<const Code*>(packet) + within;
  constexpr int kAtOnce = kOcto * sizeof(Code) <= 16 ? kOcto : 4;
#pragma unroll
  for (int i = 0; i < kOcto; i += kAtOnce) {
    float part[kAtOnce];
    decode_pack<Code, kAtOnce>(load_pack<kAtOnce>(codes + i), part);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      values[i + j] = part[j] * factor;
    }
  }
}

/// A thread sums eight elements at a time over all contributions, in order.
template <typename Code, typename Y, bool Aligned>
__global__ void __launch_bounds__(kBlock) sum_kernel(SumArguments call, Y* y) {
  const int64_t stride = int64_t{gridDim.x} * kBlock * kOcto;
  const int64_t summed = call.chunks * call.layout.chunk;
  for (int64_t k = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * kOcto; k < summed; k += stride) {
    const int64_t within = k % call.layout.chunk;
    const int64_t chunk = k / call.layout.chunk;
    const int64_t i = chunk_begin(call.range, call.layout.chunk, chunk) + within;
    if (i >= call.count) {
      continue;
    }
    const uint8_t* packet = call.packets + chunk * call.layout.packet_bytes;
    float sum[kOcto];
    for (int64_t r = 0; r < call.contributions; ++r) {
      float values[kOcto];
      if (r == call.exact_index) {
        call.exact.load<kOcto, false>(i, call.count - i, {}, values);
      } else if constexpr (std::is_same_v<Code, e2m1>) {
        const DeviceEncoded<> from = packet_tensor(call.layout, packet);
        from.load<kOcto, true>(within, kOcto, from.scale_at(within, kOcto), values);
      } else {
        load_octo<Code>(call, packet, within, values);
      }
#pragma unroll
      for (int j = 0; j < kOcto; ++j) {
        sum[j] = r == 0 ? values[j] : sum[j] + values[j];
      }
      packet += call.chunks * call.layout.packet_bytes;
    }
#pragma unroll
    for (int j = 0; j < kOcto; ++j) {
      sum[j] *= call.factor;
    }
    if (Aligned && i + kOcto <= call.count) {
      store_values<kOcto, true>(y + i, sum, kOcto);
    } else {
      store_values<kOcto, false>(y + i, sum, call.count - i);
    }
  }
}

template <typename Code>
void sum_as(const Stream& stream, const SumWire& call, const SumArguments& arguments) {
  const LaunchShape shape = {
      blocks_for(stream, ceil_div(arguments.chunks * arguments.layout.chunk, kOcto)), kBlock};
  const bool aligned = is_aligned(call.y.data);
  PlainWireTypes::with(call.y.dtype, [&]<typename Y>(TypeTag<Y>) {
    launch(stream, shape, aligned ? sum_kernel<Code, Y, true> : sum_kernel<Code, Y, false>,
           arguments, call.y.as<Y>());
  });
}

/// combine_ranks() for map.
template <typename Bits, typename T>
struct CombineRanks {
  const T* parts;
  int64_t ranks, count;
  Combine how;
  T* y;

  template <int N>
  __device__ void run(int64_t i) const {
    y[i] = combined<Bits>(parts, ranks, count, i, how);
  }
};

template <typename Bits, typename T>
void combine_as(const Stream& stream, const ConstView& parts, Combine how, const View& y) {
  const int64_t count = y.count();
  map<1>(stream, count, true,
         CombineRanks<Bits, T>{parts.as<T>(), parts.count() / count, count, how, y.as<T>()});
}

/// combine_ranks() in pairs, for map.
template <typename X, typename Y>
struct AddInPairs {
  const X* parts;
  int64_t ranks, count;
  Y* y;

  template <int N>
  struct Load {
    const X* first;
    int64_t stride;
    __device__ __forceinline__ auto operator()(int64_t rank) const {
      const Pack<X, N> pack = load_pack<N>(first + rank * stride);
      ValueRun<decltype(load_summand(first)), N> run;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        run.values[j] = load_summand(&pack.values[j]);
      }
      return run;
    }
  };

  template <int N>
  __device__ void run(int64_t i) const {
    const auto sum = in_pairs(ranks, Load<N>{parts + i, count}, AddRuns{});
    Pack<Y, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_sum(&out.values[j], sum.values[j]);
    }
    store_pack(y + i, out);
  }
};

}  // namespace

void pack_wire(Stream stream, const PackWire& call) {
  const PacketSlot slot = {wire_layout(call.format, call.chunk), call.chunks, call.inner,
                           call.range};
  if (slot.layout.scaled && call.x.format == call.format) {
    check(slot.layout.group == kGroup, "pack_wire: only codes in groups of 128 are copied");
    launch(stream, {blocks_for(stream, call.chunk * call.chunks, kBlock * kQuad), kBlock},
           copy_kernel<false>, call.x.codes.as<uint8_t>(), call.x.scales.as<float>(),
           call.x.count(), slot, call.packets);
    return;
  }
  if (!slot.layout.scaled) {
    return PlainWireTypes::with(call.format.dtype, [&](auto tag) {
      pack_as<typename decltype(tag)::Type, kQuad>(stream, call, slot);
    });
  }
  if (slot.layout.two_level) {
    return launch(stream, {blocks_for(stream, call.chunk * call.chunks, kBlock * kQuad), kBlock},
                  pack_levels_kernel, encoded<false>(call.x), call.x.count(), slot, call.packets);
  }
  WireCodes::with(call.format.dtype, [&](auto tag) {
    pack_groups<typename decltype(tag)::Type>(stream, call, slot,
                                              std::make_index_sequence<std::size(kWireGroups)>());
  });
}

void unpack_wire(Stream stream, const UnpackWire& call) {
  const Encoded& y = call.y;
  const PacketSlot slot = {wire_layout(y.format, call.chunk), call.chunks, 1, call.range};
  check(slot.layout.group == kGroup, "unpack_wire: only codes in groups of 128 are copied");
  launch(stream, {blocks_for(stream, call.chunk * call.chunks, kBlock * kQuad), kBlock},
         copy_kernel<true>, y.codes.as<uint8_t>(), y.scales.as<float>(), y.count(), slot,
         const_cast<void*>(call.packets));
}

void sum_wire(Stream stream, const SumWire& call) {
  const WireLayout layout = wire_layout(call.format, call.chunk);
  const View exact = {const_cast<void*>(call.exact.data), call.exact.dtype, call.exact.shape};
  const SumArguments arguments = {static_cast<const uint8_t*>(call.packets),
                                  layout,
                                  call.chunks,
                                  call.contributions,
                                  call.exact_index,
                                  encoded<false>(exact),
                                  call.factor,
                                  call.range,
                                  call.y.count(),
                                  std::countr_zero(static_cast<uint64_t>(layout.group))};
  const auto run = [&](auto tag) { sum_as<typename decltype(tag)::Type>(stream, call, arguments); };
  layout.two_level ? run(TypeTag<e2m1>{})
  : layout.scaled  ? WireCodes::with(call.format.dtype, run)
                   : PlainWireTypes::with(call.format.dtype, run);
}

void combine_ranks(Stream stream, ConstView parts, Combine how, View y) {
  if (how == Combine::pairs) {
    return with_paired_types(parts.dtype, y.dtype, [&](auto from, auto to) {
      using X = typename decltype(from)::Type;
      using Y = typename decltype(to)::Type;
      constexpr int kTogether = sizeof(X) == sizeof(double) ? 1 : kOcto;
      const int64_t count = y.count();
      const bool aligned = count % kTogether == 0 &&
                           is_aligned(parts.data, sizeof(X) * kTogether) &&
                           is_aligned(y.data, sizeof(Y) * kTogether);
      map<kTogether>(stream, count, aligned,
                     AddInPairs<X, Y>{parts.as<X>(), parts.count() / count, count, y.as<Y>()});
    });
  }
  y.dtype == DType::f32 ? combine_as<uint32_t, float>(stream, parts, how, y)
                        : combine_as<uint64_t, double>(stream, parts, how, y);
}

}  // namespace fp8train::ops::cuda
