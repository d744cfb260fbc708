// The statistics of all casts of a model, of which ranks see parts.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/engine.h"
#include "nn/moe_shape.h"

namespace fp8train {
namespace {

/// The numbers of a slot as ranks send them.
struct SlotNumbers {
  size_t slot;  ///< among all of the model
  float scale;
  ops::QuantizeStatistics statistics;
  CastSample sample;

  bool is_same_tensor(const SlotNumbers& other) const {
    return statistics.count == other.statistics.count &&
           statistics.saturated == other.statistics.saturated &&
           statistics.underflow == other.statistics.underflow &&
           sample.signal == other.sample.signal && sample.noise == other.sample.noise &&
           sample.amax == other.sample.amax;
  }
  void add(const SlotNumbers& other) {
    statistics.count += other.statistics.count;
    statistics.saturated += other.statistics.saturated;
    statistics.underflow += other.statistics.underflow;
    sample.signal += other.sample.signal;
    sample.noise += other.sample.noise;
    sample.amax = larger_magnitude(sample.amax, other.sample.amax);
  }
  static float larger_magnitude(float a, float b) { return a != a || b <= a ? a : b; }
};

/// Returns what each of `ranks` sends, in rank order.
std::vector<SlotNumbers> gather(Communicator& ranks, std::vector<SlotNumbers> own) {
  const std::vector<size_t> counts = ranks.all_gather_values(own.size());
  const size_t most = std::ranges::max(counts);
  std::vector<SlotNumbers> padded(most * counts.size());
  if (most > 0) {
    own.resize(most);
    ranks
        .all_gather(Communicator::host_stream(), own.data(), padded.data(),
                    most * sizeof(SlotNumbers))
        .wait();
  }
  std::vector<SlotNumbers> all;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const auto begin = padded.begin() + static_cast<int64_t>(rank * most);
    all.insert(all.end(), begin, begin + static_cast<int64_t>(counts[rank]));
  }
  return all;
}

/// Replaces the reports of slots that `of_ranks` chooses by those of the whole tensors. Ranks have
/// cast different parts of a tensor, or each has cast all of it and has the same numbers.
void combine(Communicator* ranks, const std::function<bool(const SlotReport&)>& of_ranks,
             std::vector<SlotReport>& reports) {
  if (ranks == nullptr || reports.empty()) {
    return;
  }
  std::vector<SlotNumbers> own;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].statistics.count > 0 && of_ranks(reports[i])) {
      own.push_back({i, reports[i].scale, reports[i].statistics, reports[i].sample});
    }
  }
  std::vector<SlotNumbers> all = gather(*ranks, std::move(own));
  std::ranges::stable_sort(all, {}, &SlotNumbers::slot);
  for (auto first = all.begin(); first != all.end();) {
    const auto end =
        std::find_if(first, all.end(), [&](const auto& one) { return one.slot != first->slot; });
    SlotNumbers whole = *first;
    if (!std::all_of(first, end, [&](const auto& one) { return one.is_same_tensor(*first); })) {
      std::for_each(first + 1, end, [&](const auto& one) { whole.add(one); });
    }
    SlotReport& report = reports[whole.slot];
    report = {report.slot, whole.scale, whole.statistics, whole.sample};
    first = end;
  }
}

}  // namespace

std::vector<SlotReport> Engine::slot_reports() {
  std::vector<SlotReport> reports = model_.scaling().report();
  const auto is_of_expert = [](const SlotReport& report) {
    return expert_of(report.slot->layer) >= 0;
  };
  combine(mesh().group(Group::expert), is_of_expert, reports);
  combine(mesh().group(Group::tensor), std::not_fn(is_of_expert), reports);
  combine(
      mesh().group(Group::pipe), [](const SlotReport&) { return true; }, reports);
  return reports;
}

}  // namespace fp8train
