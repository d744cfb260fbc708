// ZeRO 1 for an optimizer whose updates read whole matrices: gradients are exchanged as those of
// replicas, each rank updates whole parameters of its own, whose states no other rank has, and
// sends their new values to all. The weights have the bits of replicas.

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/communicator.h"
#include "parallel/strategies.h"

namespace fp8train {
namespace {

/// The most expensive first, each to the rank that has the least to do so far.
UpdateOwners balanced_owners(const ParameterStore& store, int ranks, int rank,
                             double (*cost_of)(const Parameter&)) {
  const auto& parameters = store.all();
  const auto cost = [&](size_t i) {
    return parameters[i]->trained ? cost_of(*parameters[i]) : 0.0;
  };
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return cost(a) > cost(b); });
  std::vector<double> work(static_cast<size_t>(ranks));
  UpdateOwners owners = {.ranks = ranks, .rank = rank, .of = std::vector<int>(order.size())};
  for (const size_t parameter : order) {
    const auto least = std::min_element(work.begin(), work.end());
    *least += cost(parameter);
    owners.of[parameter] = static_cast<int>(least - work.begin());
  }
  return owners;
}

class WholeParameters final : public Replicas {
 public:
  using Replicas::Replicas;

  StoreSharing sharing() const override {
    StoreSharing sharing = Replicas::sharing();
    const int ranks = mesh().size(Group::state);
    const int index = mesh().index(Group::state);
    sharing.owners = [ranks, index, cost = site().whole_cost](const ParameterStore& store) {
      return balanced_owners(store, ranks, index, cost);
    };
    return sharing;
  }

  void share_values() override {
    const std::vector<int>& owners = parameters().owners()->of;
    std::vector<Work> coming;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (!parameters().all()[i]->trained) {
        continue;
      }
      const Encoded& value = parameters().all()[i]->stored_value;
      for (const View& part : {value.codes, value.scales}) {
        if (!part.empty()) {
          coming.push_back(comm().broadcast(device().stream(), part.data, part.bytes(), owners[i]));
        }
      }
    }
    for (Work& work : coming) {
      work.wait();
    }
  }
};

}  // namespace

std::unique_ptr<Strategy> make_whole_parameters(const StrategySite& site) {
  return std::make_unique<WholeParameters>(site);
}

}  // namespace fp8train
