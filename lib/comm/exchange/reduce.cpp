#include "comm/exchange/reduce.h"

#include <cstddef>

#include "base/error.h"
#include "base/math.h"

namespace fp8train {

int64_t reduced_chunk(const Communicator& comm, int64_t count, int64_t alignment) {
  return ceil_div(ceil_div(count, alignment), comm.size()) * alignment;
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
