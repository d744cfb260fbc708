#include "comm/exchange/gradient_exchange.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/exchange/reduce.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/stored_pool.h"

namespace fp8train {

namespace {

/// Elements of a shard in a piece: pieces are equal, but for the last one.
int64_t piece_elements(const GradientBucket& bucket, int ranks, int64_t chunk, int64_t alignment) {
  const auto bytes = [&](int64_t count) {
    return static_cast<int64_t>(storage_bytes(bucket.gradients.format.dtype, {count}));
  };
  const bool fits = bytes(bucket.gradients.count()) <= bucket.piece_bytes;
  if (bucket.piece_bytes == 0 || fits || ranks == 1) {
    return chunk;
  }
  const int64_t groups = chunk / alignment;
  const int64_t most = std::max(bucket.piece_bytes / (bytes(alignment) * ranks), int64_t{1});
  const int64_t pieces = ceil_div(groups, most);
  return ceil_div(groups, pieces) * alignment;
}

}  // namespace

GradientExchange::GradientExchange(const Parts& parts)
    : groups_(parts.groups != nullptr ? parts.groups : &own_groups_),
      wire_(parts.wire),
      bucket_(parts.bucket),
      result_(parts.result) {
  Communicator& comm = parts.comm;
  if (groups_->all == nullptr) {
    groups_->all = comm.duplicate();
  }
  comm_ = groups_->all.get();
  sharing_ = bucket_.shard_ranks > 0 ? bucket_.shard_ranks : comm_->size();
  const TensorFormat& stored = bucket_.gradients.format;
  count_ = bucket_.gradients.count();
  const int64_t alignment = range_alignment(wire_.format);
  chunk_ = reduced_chunk(comm, count_, alignment);
  check(count_ > 0, "an exchange has gradients");
  piece_ = piece_elements(bucket_, ranks(), chunk_, alignment);
  check(ranks() % sharing_ == 0 && (copies() == 1 || (to_shard() && chunk_ * ranks() == count_)),
        "groups that share a bucket are equal, and so are the parts that their ranks sum");
  check(!bucket_.adds || to_shard(), "sums are added to shards");
  if (copies() > 1 && groups_->peers == nullptr) {
    std::vector<int> number_in_group;
    for (int rank = 0; rank < ranks(); ++rank) {
      number_in_group.push_back(rank % sharing_);
    }
    groups_->peers = comm.group(number_in_group);
  }
  check(encoded() ? stored == wire_.format
                  : stored == plain(DType::f32) || stored == plain(DType::bf16),
        "gradients are exchanged from fp32, bf16 or the codes that cross the wire");
  if (comm_->in_stream_order() && ranks() > 1) {
    side_.emplace(parts.device);
  }
}

int64_t GradientExchange::own_elements() const {
  return std::clamp(count_ - own_chunk() * chunk_, int64_t{0}, chunk_);
}

View GradientExchange::stored_here() const {
  const int64_t own = own_here();
  if (own == 0) {
    return {nullptr, shard_.dtype, {0}};
  }
  const size_t before = static_cast<size_t>(offset_) * size_of(shard_.dtype);
  return {shard_.as<std::byte>() + before, shard_.dtype, {own}};
}

void GradientExchange::start(Stream stream, void* scratch, float factor, const View& shard,
                             bool last) {
  check(!under_way_, "an exchange is finished before it starts again");
  check(to_shard() ? shard.shape == Shape{own_elements() * copies()} : shard.empty(),
        "a shard is this rank's elements of the bucket");
  flight_ = TraceFlight(TraceKind::exchange, kExchangeFlight);
  caller_ = stream;
  stream_ = stream;
  if (side_) {
    side_->follow(stream);
    stream_ = side_->stream();
  }
  scratch_ = static_cast<std::byte*>(scratch) + added_bytes();
  factor_ = factor;
  last_ = last;
  whole_shard_ = shard_ = shard;
  if (copies() > 1) {
    const auto part = static_cast<size_t>(comm_->rank() / sharing_);
    shard_ = {shard.as<std::byte>() + part * shard.bytes() / static_cast<size_t>(copies()),
              shard.dtype,
              {chunk_}};
  }
  offset_ = 0;
  const bool as_it_is =
      ranks() == 1 && !to_shard() && factor == 1.0F && bucket_.gradients.format == wire_.format;
  if (!as_it_is) {
    under_way_ = true;
    begin();
  }
  if (side_) {
    advance_as_far(true);  // nothing of it waits on the host
    end_ = side_->mark_end();
  }
}

bool GradientExchange::next() {
  switch (stage_) {
    case Stage::second_send:
      send_second();
      return true;
    case Stage::sum:
      if (sum()) {
        return true;
      }
      if (bucket_.adds && own_here() > 0) {
        ops::add(stream_, stored_here(), shard_here(), stored_here());
      }
      break;
    case Stage::read:
      read_sums();
      break;
    case Stage::gathered:
      break;
  }
  return false;
}

bool GradientExchange::advance_as_far(bool waiting) {
  while (under_way_) {
    if (!waiting && !work_.done()) {
      return false;
    }
    work_.wait();
    under_way_ = next() || next_piece();
  }
  show_end();
  return true;
}

bool GradientExchange::next_piece() {
  offset_ += piece_;
  if (offset_ >= chunk_) {
    return gather_parts();
  }
  begin();
  return true;
}

bool GradientExchange::gather_parts() {
  if (copies() == 1 || !last_ || stage_ == Stage::gathered) {
    return false;
  }
  work_ = groups_->peers->all_gather(stream_, shard_.data, whole_shard_.data, shard_.bytes());
  stage_ = Stage::gathered;
  return true;
}

/// Where the exchange was submitted at once, only its last event tells.
void GradientExchange::show_end() {
  if (flight_.active() && (!side_ || (end_ != nullptr && end_->reached()))) {
    flight_.end();
  }
}

void GradientExchange::finish() {
  advance_as_far(true);
  if (end_ != nullptr) {
    end_->hold(caller_);
    while (flight_.active() && !end_->reached()) {  // for a timeline, which shows when it was over
      std::this_thread::yield();
    }
    end_.reset();
    flight_.end();
  }
}

std::unique_ptr<GradientExchange> make_gradient_exchange(Communicator& comm, Device& device,
                                                         const GradientWire& wire,
                                                         GradientBucket bucket,
                                                         ExchangeResult result,
                                                         GradientExchange::Groups* groups) {
  const auto make = wire.kind == WireKind::code_sum ? make_code_exchange : make_packet_exchange;
  return make({comm, device, wire, std::move(bucket), result, groups});
}

}  // namespace fp8train
