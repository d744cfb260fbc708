#include "parallel/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/trace.h"

namespace fp8train {

GradientBuckets::GradientBuckets(Communicator& comm, Device& device, size_t parameters,
                                 std::vector<Bucket> buckets)
    : bucket_of_(parameters, kNone),
      factor_(1.0F / static_cast<float>(comm.size())),
      in_stream_order_(comm.in_stream_order()) {
  size_t queues = 0;
  for (const Bucket& bucket : buckets) {
    queues = std::max(queues, bucket.queue + 1);
  }
  queues_ = std::vector<Queue>(queues);
  for (Bucket& bucket : buckets) {
    Queue& queue = queues_[bucket.queue];
    for (const size_t parameter : bucket.parameters) {
      bucket_of_[parameter] = buckets_.size();
    }
    const ExchangeResult result =
        bucket.shard.empty() ? ExchangeResult::whole : ExchangeResult::shard;
    Communicator& ranks = bucket.comm == nullptr ? comm : *bucket.comm;
    auto exchange =
        make_gradient_exchange(ranks, device, bucket.wire, std::move(bucket.gradients), result,
                               in_stream_order_ ? &groups_[&ranks] : &queue.groups);
    queue.waiting.reserve(queue.waiting.capacity() + 1);
    queue.scratch_bytes = std::max(queue.scratch_bytes, exchange->scratch_bytes());
    buckets_.push_back({.parameters = std::move(bucket.parameters),
                        .shard = bucket.shard,
                        .queue = bucket.queue,
                        .exchange = std::move(exchange)});
  }
  for (Queue& queue : queues_) {
    queue.scratch = Buffer(device, queue.scratch_bytes, MemoryCategory::communication);
  }
}

void GradientBuckets::begin(Stream stream, bool last) {
  stream_ = stream;
  last_ = last;
  for (Exchanged& bucket : buckets_) {
    bucket.missing = bucket.parameters.size();
  }
}

void GradientBuckets::gradients_complete(size_t begin, size_t end) {
  for (size_t parameter = begin; parameter < end; ++parameter) {
    const size_t bucket = bucket_of_[parameter];
    if (bucket != kNone && --buckets_[bucket].missing == 0) {
      Queue& queue = queues_[buckets_[bucket].queue];
      buckets_[bucket].last = last_;
      queue.waiting.push_back(bucket);
      progress(queue);
    }
  }
  progress();
}

void GradientBuckets::progress() {
  for (Queue& queue : queues_) {
    progress(queue);
  }
}

/// Where communicators keep the order of streams an exchange that has started needs no waiting: the
/// next one starts at once, so that all ranks submit theirs in one order.
void GradientBuckets::progress(Queue& queue) {
  while (!queue.bucket || buckets_[*queue.bucket].exchange->advance()) {
    if (queue.next == queue.waiting.size()) {
      return;
    }
    start_next(queue);
  }
}

void GradientBuckets::start_next(Queue& queue) {
  if (!in_stream_order_) {  // else exchanges alternate in their own stream, and backward continues
    finish_bucket(queue);
  }
  const TraceSpan span("start_exchange");
  const size_t bucket = queue.waiting[queue.next++];
  Exchanged& started = buckets_[bucket];
  started.exchange->start(stream_, queue.scratch.data(), factor_, started.shard, started.last);
  queue.bucket = bucket;
}

void GradientBuckets::finish_bucket(Queue& queue) {
  if (queue.bucket) {
    const TraceSpan span(kFinishExchangeSpan);
    buckets_[*queue.bucket].exchange->finish();
    queue.bucket.reset();
  }
}

void GradientBuckets::finish(size_t index) {
  Queue& queue = queues_[index];
  while (queue.next < queue.waiting.size()) {
    start_next(queue);
  }
  for (size_t i = 0; in_stream_order_ && i + 1 < queue.next; ++i) {
    buckets_[queue.waiting[i]].exchange->finish();
  }
  finish_bucket(queue);
  queue.waiting.clear();
  queue.next = 0;
}

void GradientBuckets::finish() {
  for (const Exchanged& bucket : buckets_) {
    check(bucket.missing == 0, "backward has completed all gradients");
  }
  for (size_t queue = 0; queue < queues_.size(); ++queue) {
    finish(queue);
  }
}

}  // namespace fp8train
