#include "comm/reduce.h"

#include <cstddef>

#include "base/error.h"
#include "base/math.h"
#include "ops/exchange/wire.h"

namespace fp8train {
namespace {

/// The two halves of the scratch memory: packets that are sent, and those that are received.
struct Exchange {
  TensorFormat format;
  int64_t chunk = 0;
  size_t packet_bytes = 0;
  void* sent = nullptr;
  void* received = nullptr;
};

Exchange exchange_of(const Communicator& comm, DType dtype, int64_t count, void* scratch) {
  check(dtype == DType::f32 || dtype == DType::bf16, "sums over ranks are of fp32 or bf16");
  Exchange exchange;
  exchange.format = plain(dtype);
  exchange.chunk = reduced_chunk(comm, count);
  exchange.packet_bytes = static_cast<size_t>(ops::wire_bytes(exchange.format, exchange.chunk));
  exchange.sent = scratch;
  exchange.received =
      static_cast<std::byte*>(scratch) + static_cast<size_t>(comm.size()) * exchange.packet_bytes;
  return exchange;
}

/// Leaves every rank's part of this rank's piece in `received`.
void scatter(Communicator& comm, Stream stream, const ConstView& x, const Exchange& exchange) {
  const View values = {const_cast<void*>(x.data), x.dtype, x.shape};
  ops::pack_wire(stream, {.x = values,
                          .format = exchange.format,
                          .chunk = exchange.chunk,
                          .chunks = comm.size(),
                          .packets = exchange.sent});
  comm.all_to_all(stream, exchange.sent, exchange.received, exchange.packet_bytes).wait();
}

void sum(const Communicator& comm, Stream stream, const Exchange& exchange, const View& y) {
  ops::sum_wire(stream, {.packets = exchange.received,
                         .format = exchange.format,
                         .contributions = comm.size(),
                         .chunk = exchange.chunk,
                         .y = y});
}

}  // namespace

int64_t reduced_chunk(const Communicator& comm, int64_t count, int64_t alignment) {
  return ceil_div(ceil_div(count, alignment), comm.size()) * alignment;
}

size_t reduce_scratch_bytes(const Communicator& comm, DType dtype, int64_t count) {
  return 2 * static_cast<size_t>(comm.size()) *
         exchange_of(comm, dtype, count, nullptr).packet_bytes;
}

void all_reduce(Communicator& comm, Stream stream, View x, void* scratch) {
  if (comm.size() == 1 || x.count() == 0) {
    return;
  }
  const Exchange exchange = exchange_of(comm, x.dtype, x.count(), scratch);
  scatter(comm, stream, x, exchange);
  auto* own = static_cast<std::byte*>(exchange.sent) +
              static_cast<size_t>(comm.rank()) * exchange.packet_bytes;
  sum(comm, stream, exchange, {own, x.dtype, {exchange.chunk}});
  comm.all_gather(stream, own, exchange.sent, exchange.packet_bytes).wait();
  ops::sum_wire(stream, {.packets = exchange.sent,
                         .format = exchange.format,
                         .chunk = exchange.chunk,
                         .chunks = comm.size(),
                         .y = x});
}

void reduce_scatter(Communicator& comm, Stream stream, ConstView x, View y, void* scratch) {
  if (x.count() == 0) {
    return;
  }
  const Exchange exchange = exchange_of(comm, x.dtype, x.count(), scratch);
  check(y.dtype == x.dtype && y.count() <= exchange.chunk, "reduce_scatter: y is a piece of x");
  scatter(comm, stream, x, exchange);
  if (y.count() > 0) {
    sum(comm, stream, exchange, y);
  }
}

void all_combine(Communicator& comm, Stream stream, View values, ops::Combine how, void* scratch) {
  if (comm.size() == 1) {
    return;
  }
  comm.all_gather(stream, values.data, scratch, values.bytes()).wait();
  ops::combine_ranks(stream, {scratch, values.dtype, {comm.size(), values.count()}}, how, values);
}

void all_combine_shares(Communicator& comm, Stream stream, View values, ops::Combine how,
                        void* scratch) {
  if (comm.size() == 1) {
    return;
  }
  const int64_t share = values.count() / comm.size();
  check(share * comm.size() == values.count(), "ranks combine shares of equal size");
  const size_t bytes = values.bytes() / static_cast<size_t>(comm.size());
  std::byte* const own = values.as<std::byte>() + static_cast<size_t>(comm.rank()) * bytes;
  comm.all_to_all(stream, values.data, scratch, bytes).wait();
  ops::combine_ranks(stream, {scratch, values.dtype, {comm.size(), share}}, how,
                     {own, values.dtype, {share}});
  comm.all_gather(stream, own, values.data, bytes).wait();
}

}  // namespace fp8train
