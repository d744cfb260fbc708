// Packets of gradients. The arithmetic of numeric/codec.h and wire_math.h, bit for bit; sums run
// over the ranks in order within one thread.

#include <algorithm>
#include <bit>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/exchange/packet_codes.cuh"
#include "ops/support/in_pairs.h"

namespace fp8train::ops::cuda {
namespace {

static_assert(std::all_of(std::begin(kWireGroups), std::end(kWireGroups), [](int group) {
  return std::has_single_bit(static_cast<unsigned>(group)) && group % (2 * kWarp) == 0;
}));

static_assert(std::all_of(WireCodes::kTypes.begin(), WireCodes::kTypes.end(),
                          [](DType code) { return size_of(code) == 1; }),
              "codes are copied as bytes");

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
template <typename Codes, int N, bool Aligned>
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
    Codes::template pack<N>(slot.layout, packet, within, in_chunk, values);
  });
}

/// Packs codes and scales that are the wire's already; with Unpack, takes them out of packets. A
/// warp has 128 elements at a time, which are whole groups.
template <bool Unpack>
__global__ void __launch_bounds__(kBlock)
    copy_kernel(uint8_t* codes, void* scales, int64_t count, PacketSlot slot, void* packets) {
  const int in_byte = slot.layout.code_bits < 8 ? 2 : 1;
  const int in_group = static_cast<int>(slot.layout.group);
  const int groups = kGroup / in_group;
  const int first = lane_index() * kQuad;
  for_each_span<1>(slot.chunks * slot.layout.chunk / kGroup, [&](int64_t span) {
    int64_t within = 0;
    uint8_t* packet = slot.packet<kGroup>(packets, span, within);
    const int64_t begin = slot.begin<kGroup>(span);
    const int64_t i = begin + first;
    uint8_t* in_packet = packet + (within * kGroup + first) / in_byte;
    if (first % in_group == 0) {
      const int64_t in_tensor = begin / kGroup * groups + first / in_group;
      const int64_t sent = within * groups + first / in_group;
      if constexpr (!Unpack) {
        send_scale(slot.layout, scales, in_tensor, i < count, packet, sent);
      } else if (i < count) {
        receive_scale(slot.layout, packet, sent, scales, in_tensor);
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

/// Starts the instance of pack_kernel for the wire's group.
template <typename Codes, size_t... Index>
void pack_groups(const Stream& stream, const PackWire& call, const PacketSlot& slot,
                 std::index_sequence<Index...> /*indices*/) {
  const bool aligned = is_aligned(call.x.codes.data);
  const auto pack = [&]<int N>(std::integral_constant<int, N>) {
    const LaunchShape shape = {blocks_for(stream, call.chunk * call.chunks, kBlock * N), kBlock};
    launch(stream, shape, aligned ? pack_kernel<Codes, N, true> : pack_kernel<Codes, N, false>,
           encoded<false>(call.x), call.x.count(), slot, call.packets);
    return true;
  };
  const bool packed = (((sizeof...(Index) == 1 || slot.layout.group == Codes::kGroups[Index]) &&
                        pack(std::integral_constant<int, Codes::kGroups[Index] / kWarp>{})) ||
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

/// A thread sums eight elements at a time over all contributions, in order.
template <typename Codes, typename Y, bool Aligned>
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
      } else {
        Codes::load(call.layout, call.group_shift, packet, within, values);
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

template <typename Codes>
void sum_as(const Stream& stream, const SumWire& call, const SumArguments& arguments) {
  const LaunchShape shape = {
      blocks_for(stream, ceil_div(arguments.chunks * arguments.layout.chunk, kOcto)), kBlock};
  const bool aligned = is_aligned(call.y.data);
  PlainWireTypes::with(call.y.dtype, [&]<typename Y>(TypeTag<Y>) {
    launch(stream, shape, aligned ? sum_kernel<Codes, Y, true> : sum_kernel<Codes, Y, false>,
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
    check(kGroup % slot.layout.group == 0, "pack_wire: codes are copied in groups of 128 at most");
    launch(stream, {blocks_for(stream, call.chunk * call.chunks, kBlock * kQuad), kBlock},
           copy_kernel<false>, call.x.codes.as<uint8_t>(), call.x.scales.data, call.x.count(), slot,
           call.packets);
    return;
  }
  with_codes(slot.layout, call.format.dtype, [&]<typename Codes>(Codes) {
    pack_groups<Codes>(stream, call, slot, std::make_index_sequence<std::size(Codes::kGroups)>());
  });
}

void unpack_wire(Stream stream, const UnpackWire& call) {
  const Encoded& y = call.y;
  const PacketSlot slot = {wire_layout(y.format, call.chunk), call.chunks, 1, call.range};
  check(kGroup % slot.layout.group == 0, "unpack_wire: codes are copied in groups of 128 at most");
  launch(stream, {blocks_for(stream, call.chunk * call.chunks, kBlock * kQuad), kBlock},
         copy_kernel<true>, y.codes.as<uint8_t>(), y.scales.data, y.count(), slot,
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
  with_codes(layout, call.format.dtype,
             [&]<typename Codes>(Codes) { sum_as<Codes>(stream, call, arguments); });
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
