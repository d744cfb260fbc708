// Replicas (DDP): parameters whose gradients lie side by side make a bucket, which is exchanged in
// the format of the plan's wire. Two exchanges are under way at a time.

#include <algorithm>
#include <utility>

#include "comm/exchange/reduce.h"
#include "parallel/strategies.h"

namespace fp8train {
namespace {

constexpr size_t kQueues = 2;

/// A buffer's tensors into stretches that the same ranks share, from the end.
void cut(const ParameterStore& parameters, size_t buffer, size_t most_bytes,
         std::vector<StoredPool::Stretch>& stretches) {
  const StoredPool& gradients = parameters.gradients();
  const std::vector<size_t>& tensors = gradients.tensors_of(buffer);
  const auto of_experts = [&](size_t i) { return parameters.all()[tensors[i]]->of_experts(); };
  for (size_t end = tensors.size(); end > 0;) {
    size_t begin = end - 1;
    size_t bytes = gradients.at(tensors[begin]).codes.bytes();
    while (begin > 0) {
      bytes += gradients.at(tensors[begin - 1]).codes.bytes();
      if (bytes > most_bytes || of_experts(begin - 1) != of_experts(begin)) {
        break;
      }
      --begin;
    }
    stretches.push_back({buffer, begin, end});
    end = begin;
  }
}

std::vector<GradientBuckets::Bucket> cut_buckets(Communicator& comm, Communicator* of_experts,
                                                 const ParameterStore& parameters,
                                                 const StrategySite& site) {
  const int64_t most_bytes = site.settings.bucket_bytes;
  const StoredPool& gradients = parameters.gradients();
  std::vector<StoredPool::Stretch> stretches;
  for (size_t buffer = 0; buffer < gradients.buffers(); ++buffer) {
    cut(parameters, buffer, static_cast<size_t>(most_bytes), stretches);
  }
  // They are sorted as backward completes them, so that queues alternate.
  const auto first_parameter = [&](const StoredPool::Stretch& stretch) {
    return gradients.tensors_of(stretch.buffer)[stretch.begin];
  };
  std::sort(stretches.begin(), stretches.end(),
            [&](const auto& a, const auto& b) { return first_parameter(a) > first_parameter(b); });
  std::vector<GradientBuckets::Bucket> buckets;
  for (const StoredPool::Stretch& stretch : stretches) {
    const std::vector<size_t>& tensors = gradients.tensors_of(stretch.buffer);
    const auto index = static_cast<size_t>(gradients.wire_index(stretch.buffer));
    const std::vector<size_t> members(tensors.begin() + static_cast<std::ptrdiff_t>(stretch.begin),
                                      tensors.begin() + static_cast<std::ptrdiff_t>(stretch.end));
    Communicator* const own =
        parameters.all()[members.front()]->of_experts() ? of_experts : nullptr;
    const Topology& topology = (own == nullptr ? comm : *own).topology();
    // Not within the braces below: what they throw destroys members twice (GCC 12).
    const GradientWire wire = gradient_wire(parameters.wires()[index], site.self_exact, topology);
    buckets.push_back({.parameters = members,
                       .gradients = {.gradients = gradients.flat(stretch),
                                     .tensors = gradients.begins_of(stretch),
                                     .piece_bytes = most_bytes,
                                     .automatic = parameters.controllers_of(members),
                                     .scale_ranks = own == nullptr ? site.scale_ranks() : nullptr,
                                     .result = parameters.exchanged_gradients(stretch)},
                       .wire = wire,
                       .shard = {},
                       .queue = buckets.size() % kQueues + (own == nullptr ? 0 : kQueues),
                       .comm = own});
  }
  return buckets;
}

}  // namespace

void Replicas::attach(Device& device, ParameterStore& parameters, const View& amax) {
  RankedStrategy::attach(device, parameters, amax);
  if (site().trains) {
    gradients_.emplace(comm(), device, parameters.all().size(),
                       cut_buckets(comm(), expert_comm(), parameters, site()));
  }
}

GradientListener* Replicas::begin_exchange(bool last) {
  gradients_->begin(device().stream(), last);
  return &*gradients_;
}

void Replicas::finish_exchange(double* squared_norm) {
  gradients_->finish();
  // NaN where a rank has seen a value that is not finite: all skip the step or none.
  all_combine(comm(), device().stream(), {squared_norm, DType::f64, {1}}, ops::Combine::sum,
              combine_scratch());
}

std::unique_ptr<Strategy> make_data_parallel(const StrategySite& site) {
  return std::make_unique<Replicas>(site);
}

}  // namespace fp8train
