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

/// Deals the most expensive first, each to the rank that has the least to do so far. Of experts,
/// `different` ranks one after another have different ones: each updates its own.
UpdateOwners balanced_owners(const ParameterStore& store, int ranks, int rank, int different,
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
    const int together = parameters[parameter]->of_experts() ? different : 1;
    const auto work_of = [&](int first) {
      return std::accumulate(work.begin() + first, work.begin() + first + together, 0.0);
    };
    int least = 0;
    for (int first = together; first < ranks; first += together) {
      least = work_of(first) < work_of(least) ? first : least;
    }
    for (int i = least; i < least + together; ++i) {
      work[static_cast<size_t>(i)] += cost(parameter);
    }
    owners.of[parameter] = rank / together == least / together ? rank : least;
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
    sharing.owners = [ranks, index, together = different(),
                      cost = site().whole_cost](const ParameterStore& store) {
      return balanced_owners(store, ranks, index, together, cost);
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
      const bool of_experts = parameters().all()[i]->of_experts();
      Communicator& ranks = of_experts ? *expert_comm() : comm();
      const int root = owners[i] / (of_experts ? different() : 1);
      for (const View& part : {value.codes, value.scales}) {
        if (!part.empty()) {
          coming.push_back(ranks.broadcast(device().stream(), part.data, part.bytes(), root));
        }
      }
    }
    for (Work& work : coming) {
      work.wait();
    }
  }

 private:
  /// Returns how many ranks of Group::state, one after another, have different experts.
  int different() const { return mesh().size(Group::state) / mesh().size(Group::expert_state); }
};

}  // namespace

std::unique_ptr<Strategy> make_whole_parameters(const StrategySite& site) {
  return std::make_unique<WholeParameters>(site);
}

}  // namespace fp8train
