#include "parallel/data_parallel.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"

namespace fp8train {

DataParallel::DataParallel(Communicator& comm, Device& device, ParameterStore& parameters,
                           const DataParallelSettings& settings)
    : comm_(&comm), parameters_(&parameters), bucket_of_(parameters.all().size()) {
  for (size_t buffer = 0; buffer < parameters.gradients().buffers(); ++buffer) {
    make_buckets(device, buffer, settings);
  }
  size_t bytes = 0;
  for (const Bucket& bucket : buckets_) {
    bytes = std::max(bytes, bucket.exchange.scratch_bytes());
  }
  for (Buffer& scratch : scratch_) {
    scratch = Buffer(device, bytes, MemoryCategory::communication);
  }
}

/// From the end, as backward completes them.
void DataParallel::make_buckets(Device& device, size_t buffer,
                                const DataParallelSettings& settings) {
  const StoredPool& gradients = parameters_->gradients();
  const std::vector<size_t>& tensors = gradients.tensors_of(buffer);
  const TensorFormat& cell = parameters_->wires()[static_cast<size_t>(gradients.lane_of(buffer))];
  const GradientWire wire = gradient_wire(cell, settings.self_exact, comm_->topology());
  for (size_t end = tensors.size(); end > 0;) {
    size_t begin = end - 1;
    size_t bytes = gradients.at(tensors[begin]).codes.bytes();
    while (begin > 0) {
      bytes += gradients.at(tensors[begin - 1]).codes.bytes();
      if (bytes > static_cast<size_t>(settings.bucket_bytes)) {
        break;
      }
      --begin;
    }
    const StoredPool::Stretch stretch = {buffer, begin, end};
    const std::vector<size_t> members(tensors.begin() + static_cast<std::ptrdiff_t>(begin),
                                      tensors.begin() + static_cast<std::ptrdiff_t>(end));
    for (const size_t parameter : members) {
      bucket_of_[parameter] = buckets_.size();
    }
    buckets_.push_back(
        {.parameters = members,
         .exchange = GradientExchange(*comm_, device, wire,
                                      {gradients.flat(stretch), gradients.begins_of(stretch)},
                                      ExchangeResult::whole, &groups_)});
    end = begin;
  }
}

void DataParallel::begin(Stream stream) {
  check(under_way_.empty(), "a step's exchanges are finished before the next begin");
  stream_ = stream;
  started_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.parameters.size();
  }
}

void DataParallel::gradients_complete(size_t begin, size_t end) {
  for (size_t parameter = begin; parameter < end; ++parameter) {
    const size_t bucket = bucket_of_[parameter];
    if (--buckets_[bucket].missing == 0) {
      start(bucket);
    }
  }
  for (const size_t bucket : under_way_) {
    buckets_[bucket].exchange.advance();
  }
}

void DataParallel::start(size_t bucket) {
  if (under_way_.size() == kUnderWay) {
    finish_oldest();
  }
  const TraceSpan span("start_exchange");
  void* scratch = scratch_[started_ % kUnderWay].data();
  buckets_[bucket].exchange.start(stream_, scratch, 1.0F);
  under_way_.push_back(bucket);
  ++started_;
}

void DataParallel::finish_oldest() {
  const TraceSpan span("finish_exchange");
  buckets_[under_way_.front()].exchange.finish();
  under_way_.pop_front();
}

void DataParallel::finish() {
  check(started_ == buckets_.size(), "backward has completed all gradients");
  while (!under_way_.empty()) {
    finish_oldest();
  }
}

}  // namespace fp8train
