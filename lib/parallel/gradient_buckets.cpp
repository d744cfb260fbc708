#include "parallel/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/trace.h"

namespace fp8train {

GradientBuckets::GradientBuckets(Communicator& comm, Device& device, size_t parameters,
                                 std::vector<Bucket> buckets)
    : bucket_of_(parameters), in_stream_order_(comm.in_stream_order()) {
  size_t lanes = 0;
  for (const Bucket& bucket : buckets) {
    lanes = std::max(lanes, bucket.lane + 1);
  }
  lanes_ = std::vector<Lane>(lanes);
  for (Bucket& bucket : buckets) {
    Lane& lane = lanes_[bucket.lane];
    for (const size_t parameter : bucket.parameters) {
      bucket_of_[parameter] = buckets_.size();
    }
    const ExchangeResult result =
        bucket.shard.empty() ? ExchangeResult::whole : ExchangeResult::shard;
    GradientExchange exchange(comm, device, bucket.wire, std::move(bucket.gradients), result,
                              comm.in_stream_order() ? &lanes_.front().groups : &lane.groups);
    lane.waiting.reserve(lane.waiting.capacity() + 1);
    lane.scratch_bytes = std::max(lane.scratch_bytes, exchange.scratch_bytes());
    buckets_.push_back({.parameters = std::move(bucket.parameters),
                        .shard = bucket.shard,
                        .lane = bucket.lane,
                        .exchange = std::move(exchange)});
  }
  for (Lane& lane : lanes_) {
    lane.scratch = Buffer(device, lane.scratch_bytes, MemoryCategory::communication);
  }
}

void GradientBuckets::begin(Stream stream) {
  stream_ = stream;
  for (Exchanged& bucket : buckets_) {
    bucket.missing = bucket.parameters.size();
  }
}

void GradientBuckets::complete(size_t begin, size_t end) {
  for (size_t parameter = begin; parameter < end; ++parameter) {
    const size_t bucket = bucket_of_[parameter];
    if (--buckets_[bucket].missing == 0) {
      Lane& lane = lanes_[buckets_[bucket].lane];
      lane.waiting.push_back(bucket);
      go_on(lane);
    }
  }
  go_on();
}

void GradientBuckets::go_on() {
  for (Lane& lane : lanes_) {
    go_on(lane);
  }
}

/// Where communicators keep the order of streams an exchange that has started needs no waiting: the
/// next one starts at once, so that all ranks submit theirs in one order.
void GradientBuckets::go_on(Lane& lane) {
  while (!lane.bucket || buckets_[*lane.bucket].exchange.advance()) {
    if (lane.next == lane.waiting.size()) {
      return;
    }
    start_next(lane);
  }
}

void GradientBuckets::start_next(Lane& lane) {
  if (!in_stream_order_) {  // else exchanges take turns in their own stream, and backward goes on
    finish_bucket(lane);
  }
  const TraceSpan span("start_exchange");
  const size_t bucket = lane.waiting[lane.next++];
  Exchanged& started = buckets_[bucket];
  started.exchange.start(stream_, lane.scratch.data(), 1.0F, started.shard);
  lane.bucket = bucket;
}

void GradientBuckets::finish_bucket(Lane& lane) {
  if (lane.bucket) {
    const TraceSpan span("finish_exchange");
    buckets_[*lane.bucket].exchange.finish();
    lane.bucket.reset();
  }
}

void GradientBuckets::finish(size_t index) {
  Lane& lane = lanes_[index];
  while (lane.next < lane.waiting.size()) {
    start_next(lane);
  }
  for (size_t i = 0; in_stream_order_ && i + 1 < lane.next; ++i) {
    buckets_[lane.waiting[i]].exchange.finish();
  }
  finish_bucket(lane);
  lane.waiting.clear();
  lane.next = 0;
}

void GradientBuckets::finish() {
  for (const Exchanged& bucket : buckets_) {
    check(bucket.missing == 0, "backward has completed all gradients");
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    finish(lane);
  }
}

}  // namespace fp8train
