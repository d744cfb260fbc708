#include "parallel/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/trace.h"

namespace fp8train {

GradientBuckets::GradientBuckets(Communicator& comm, Device& device, size_t parameters,
                                 std::vector<Bucket> buckets)
    : bucket_of_(parameters) {
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
      start(bucket);
    }
  }
  for (const Lane& lane : lanes_) {
    if (lane.bucket) {
      buckets_[*lane.bucket].exchange.advance();
    }
  }
}

void GradientBuckets::start(size_t bucket) {
  Exchanged& started = buckets_[bucket];
  finish(started.lane);
  const TraceSpan span("start_exchange");
  Lane& lane = lanes_[started.lane];
  started.exchange.start(stream_, lane.scratch.data(), 1.0F, started.shard);
  lane.bucket = bucket;
}

void GradientBuckets::finish(size_t lane) {
  if (lanes_[lane].bucket) {
    const TraceSpan span("finish_exchange");
    buckets_[*lanes_[lane].bucket].exchange.finish();
    lanes_[lane].bucket.reset();
  }
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
