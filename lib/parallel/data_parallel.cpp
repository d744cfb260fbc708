#include "parallel/data_parallel.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/trace.h"

namespace fp8train {

DataParallel::DataParallel(Communicator& comm, Device& device, ParameterStore& parameters,
                           const DataParallelSettings& settings)
    : comm_(&comm), parameters_(&parameters), bucket_of_(parameters.all().size()) {
  std::vector<StoredPool::Stretch> stretches;
  for (size_t buffer = 0; buffer < parameters.gradients().buffers(); ++buffer) {
    cut(buffer, static_cast<size_t>(settings.bucket_bytes), stretches);
  }
  // As backward completes them, so that lanes take turns.
  const auto first_parameter = [&](const StoredPool::Stretch& stretch) {
    return parameters.gradients().tensors_of(stretch.buffer)[stretch.begin];
  };
  std::sort(stretches.begin(), stretches.end(),
            [&](const auto& a, const auto& b) { return first_parameter(a) > first_parameter(b); });
  for (const StoredPool::Stretch& stretch : stretches) {
    add_bucket(device, stretch, settings.self_exact);
  }
  for (Lane& lane : lanes_) {
    lane.scratch = Buffer(device, lane.scratch_bytes, MemoryCategory::communication);
  }
}

/// A buffer's tensors into stretches, from the end.
void DataParallel::cut(size_t buffer, size_t most_bytes,
                       std::vector<StoredPool::Stretch>& stretches) const {
  const StoredPool& gradients = parameters_->gradients();
  const std::vector<size_t>& tensors = gradients.tensors_of(buffer);
  for (size_t end = tensors.size(); end > 0;) {
    size_t begin = end - 1;
    size_t bytes = gradients.at(tensors[begin]).codes.bytes();
    while (begin > 0) {
      bytes += gradients.at(tensors[begin - 1]).codes.bytes();
      if (bytes > most_bytes) {
        break;
      }
      --begin;
    }
    stretches.push_back({buffer, begin, end});
    end = begin;
  }
}

void DataParallel::add_bucket(Device& device, const StoredPool::Stretch& stretch, bool self_exact) {
  const StoredPool& gradients = parameters_->gradients();
  const auto wire_index = static_cast<size_t>(gradients.lane_of(stretch.buffer));
  const GradientWire wire =
      gradient_wire(parameters_->wires()[wire_index], self_exact, comm_->topology());
  std::vector<size_t> members;
  for (size_t i = stretch.begin; i < stretch.end; ++i) {
    members.push_back(gradients.tensors_of(stretch.buffer)[i]);
    bucket_of_[members.back()] = buckets_.size();
  }
  Lane& lane = lane_of(buckets_.size());
  GradientExchange exchange(*comm_, device, wire,
                            {gradients.flat(stretch), gradients.begins_of(stretch)},
                            ExchangeResult::whole, &lane.groups);
  lane.scratch_bytes = std::max(lane.scratch_bytes, exchange.scratch_bytes());
  buckets_.push_back({.parameters = members, .exchange = std::move(exchange)});
}

void DataParallel::begin(Stream stream) {
  stream_ = stream;
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
  for (const Lane& lane : lanes_) {
    if (lane.bucket) {
      buckets_[*lane.bucket].exchange.advance();
    }
  }
}

void DataParallel::start(size_t bucket) {
  Lane& lane = lane_of(bucket);
  finish(lane);
  const TraceSpan span("start_exchange");
  buckets_[bucket].exchange.start(stream_, lane.scratch.data(), 1.0F);
  lane.bucket = bucket;
}

void DataParallel::finish(Lane& lane) {
  if (lane.bucket) {
    const TraceSpan span("finish_exchange");
    buckets_[*lane.bucket].exchange.finish();
    lane.bucket.reset();
  }
}

void DataParallel::finish() {
  for (const Bucket& bucket : buckets_) {
    check(bucket.missing == 0, "backward has completed all gradients");
  }
  for (Lane& lane : lanes_) {
    finish(lane);
  }
}

}  // namespace fp8train
