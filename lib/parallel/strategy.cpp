#include "parallel/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "base/nearest.h"
#include "comm/exchange/reduce.h"
#include "parallel/strategies.h"

namespace fp8train {
namespace {

struct Entry {
  const char* name = nullptr;
  bool (*serves)(const StrategySite& site) = nullptr;
  std::unique_ptr<Strategy> (*make)(const StrategySite& site) = nullptr;
  bool has_stages = false;  ///< the name is followed by StrategySettings::zero_stage
};

constexpr Entry kStrategies[] = {
    {"one rank", [](const StrategySite& site) { return site.mesh.size(Group::state) == 1; },
     [](const StrategySite& site) { return std::make_unique<Strategy>(site); }},
    {"ZeRO",
     [](const StrategySite& site) {
       return site.trains && site.settings.zero_stage == 1 && site.whole_cost != nullptr;
     },
     make_whole_parameters, true},
    {"ZeRO", [](const StrategySite& site) { return site.trains && site.settings.zero_stage > 0; },
     make_zero, true},
    {"DDP", [](const StrategySite&) { return true; }, make_data_parallel},
};

const Entry& entry_for(const StrategySite& site) {
  return *std::find_if(std::begin(kStrategies), std::end(kStrategies),
                       [&](const Entry& entry) { return entry.serves(site); });
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(const StrategySite& site) {
  return entry_for(site).make(site);
}

std::string strategy_name(const StrategySite& site) {
  const Entry& entry = entry_for(site);
  std::string name = entry.name;
  if (entry.has_stages) {
    name += ' ';
    name += std::to_string(site.settings.zero_stage);
    if (const int ranks = site.shard_ranks(); ranks < site.mesh.size(Group::state)) {
      name += fmt::format(" within groups of {}", ranks);
    }
    name += site.adds_shards() ? ", gradients exchanged in each micro-batch" : "";
  }
  return name;
}

int StrategySite::shard_ranks() const {
  const int ranks = mesh.size(Group::state);
  const MeshShape& shape = mesh.shape();
  const int64_t of_node =
      shape.nodes == 1 ? ranks : std::min<int64_t>(shape.ranks_per_node() / shape.tensor, ranks);
  const int64_t given = settings.shard_ranks;
  const int64_t sharing = given == 0 ? ranks : given == kRanksOfNode ? of_node : given;
  if (sharing == 0) {
    throw KeyError("parallelism.shard_ranks",
                   ": node: the nodes have different numbers of ranks, or fewer than share a "
                   "layer; give a number");
  }
  if (ranks % sharing != 0) {
    throw KeyError(
        "parallelism.shard_ranks",
        fmt::format(" is {}, which does not divide {} ranks; the nearest number that does is {}",
                    sharing, ranks, nearest_divisor(ranks, sharing)));
  }
  if (sharing * shape.tensor % shape.expert != 0) {
    const int64_t step = shape.expert / std::gcd(shape.expert, shape.tensor);
    throw KeyError(
        "parallelism.shard_ranks",
        fmt::format(" is {}: ranks that share one copy have all experts, and parallelism.expert is "
                    "{}; the nearest number that works is {}",
                    sharing, shape.expert,
                    step * nearest_divisor(ranks / step, std::max<int64_t>(1, sharing / step))));
  }
  return static_cast<int>(sharing);
}

void Strategy::for_each_replica(const std::function<void(const Parameter&, const Encoded&)>& use) {
  for (const auto& parameter : parameters().all()) {
    use(*parameter, parameter->stored_value);
  }
}

void RankedStrategy::attach(Device& device, ParameterStore& parameters, const View& amax) {
  Strategy::attach(device, parameters, amax);
  const auto ranks = static_cast<size_t>(comm().size());
  const size_t few = std::max(amax.bytes(), 2 * sizeof(float) * parameters.all().size());
  const StoreShards* const shards = parameters.shards();
  size_t of_blocks = 0;
  for (const bool of_experts : {false, true}) {
    const View amax_of_blocks = shards == nullptr ? View{} : shards->block_amax(of_experts);
    of_blocks = std::max(of_blocks, amax_of_blocks.empty() ? 0 : amax_of_blocks.bytes());
  }
  const size_t of_norm = sizeof(double) * static_cast<size_t>(mesh().size(Group::stage));
  if (mesh().size(Group::expert) > 1 && mesh().size(Group::expert_state) == 1) {
    std::vector<int> own_groups(static_cast<size_t>(comm().size()));
    std::iota(own_groups.begin(), own_groups.end(), 0);
    alone_ = comm().group(own_groups);
  }
  combined_ =
      Buffer(device, std::max({few * ranks, of_blocks, of_norm}), MemoryCategory::communication);
  parameters.scale_sums();
}

void RankedStrategy::combine_amax(Stream stream, const View& values) {
  if (values.count() > 0) {
    all_combine(comm(), stream, values, ops::Combine::max, combined_.data());
  }
}

void RankedStrategy::sum(double* value) {
  all_combine(counting_ranks(), device().stream(), {value, DType::f64, {1}}, ops::Combine::sum,
              combined_.data());
}

void RankedStrategy::largest(const View& values) {
  combine_amax(device().stream(), values);
}

}  // namespace fp8train
