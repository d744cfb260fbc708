#include "io/checkpoint_retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace fp8train {

namespace fs = std::filesystem;

CheckpointRetention::CheckpointRetention(fs::path root, RetentionRules rules,
                                         LossOfCheckpoint loss_of)
    : root_(std::move(root)), rules_(rules), loss_of_(std::move(loss_of)) {
  check(rules_.keep_last >= 1, "at least one checkpoint must be kept");
}

/// Sizes are looked at each time, hashes once.
bool CheckpointRetention::is_valid(const CheckpointPlace& checkpoint) {
  const bool known = verified_.count(checkpoint.step) > 0;
  try {
    verify_checkpoint(checkpoint.path, known ? Verify::sizes : Verify::hashes);
  } catch (const CheckpointError& error) {
    verified_.erase(checkpoint.step);
    if (damaged_.insert(checkpoint.step).second) {
      notes_.push_back(fmt::format("checkpoint {} cannot be used: {}",
                                   checkpoint.path.filename().string(), error.what()));
    }
    return false;
  }
  verified_.insert(checkpoint.step);
  damaged_.erase(checkpoint.step);
  return true;
}

std::set<int64_t> CheckpointRetention::best_steps(const std::vector<CheckpointPlace>& checkpoints) {
  struct Candidate {
    CheckpointLoss evaluated;
    const CheckpointPlace* checkpoint;
  };
  std::vector<Candidate> candidates;
  for (const CheckpointPlace& checkpoint : checkpoints) {
    try {
      const std::optional<CheckpointLoss> found =
          loss_of_ ? loss_of_(checkpoint.path) : std::nullopt;
      if (found && std::isfinite(found->loss)) {
        candidates.push_back({*found, &checkpoint});
      }
    } catch (const CheckpointError&) {
      continue;  // it is not among the best
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.evaluated.loss, a.evaluated.step, a.checkpoint->step) <
           std::tuple(b.evaluated.loss, b.evaluated.step, b.checkpoint->step);
  });
  std::set<int64_t> steps;
  std::set<int64_t> evaluations;
  for (const Candidate& candidate : candidates) {
    const bool wanted = static_cast<int64_t>(steps.size()) < rules_.keep_best &&
                        evaluations.count(candidate.evaluated.step) == 0;
    if (wanted && is_valid(*candidate.checkpoint)) {
      steps.insert(candidate.checkpoint->step);
      evaluations.insert(candidate.evaluated.step);
    }
  }
  return steps;
}

std::vector<fs::path> CheckpointRetention::apply() {
  const std::vector<CheckpointPlace> all = find_checkpoints(root_);
  int64_t valid = 0;
  size_t next = 0;
  for (; next < all.size() && valid < rules_.keep_last; ++next) {
    valid += is_valid(all[next]) ? 1 : 0;
    if (valid == 0) {
      return {};  // the newest one is damaged: nothing may go
    }
  }
  if (next == all.size()) {
    return {};
  }
  const std::set<int64_t> best = rules_.keep_best > 0 ? best_steps(all) : std::set<int64_t>();
  std::vector<fs::path> deleted;
  for (; next < all.size(); ++next) {
    const CheckpointPlace& checkpoint = all[next];
    const bool stays = best.count(checkpoint.step) > 0 ||
                       (rules_.keep_every > 0 && checkpoint.step % rules_.keep_every == 0);
    if (!stays) {
      remove_checkpoint(checkpoint);
      verified_.erase(checkpoint.step);
      deleted.push_back(checkpoint.path);
    }
  }
  return deleted;
}

}  // namespace fp8train
