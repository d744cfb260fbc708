#include "io/checkpoint/checkpoint_retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace fp8train {

namespace fs = std::filesystem;

CheckpointRetention::CheckpointRetention(fs::path root, RetentionRules rules,
                                         LossOfCheckpoint loss_of, IsScheduled is_scheduled)
    : root_(std::move(root)),
      rules_(rules),
      loss_of_(std::move(loss_of)),
      is_scheduled_(std::move(is_scheduled)) {
  check(rules_.keep_last >= 1, "at least one checkpoint must remain");
}

/// Sizes are looked at each time, hashes once.
bool CheckpointRetention::is_valid(const CheckpointFolder& checkpoint) {
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

std::set<int64_t> CheckpointRetention::best_steps(
    const std::vector<CheckpointFolder>& checkpoints) {
  struct Candidate {
    CheckpointLoss evaluated;
    const CheckpointFolder* checkpoint;
  };
  std::vector<Candidate> candidates;
  for (const CheckpointFolder& checkpoint : checkpoints) {
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

bool CheckpointRetention::is_scheduled(const CheckpointFolder& checkpoint) const {
  try {
    return !is_scheduled_ || is_scheduled_(checkpoint.path);
  } catch (const CheckpointError&) {
    return true;  // is_valid() looks closer
  }
}

/// Those that keep_last keeps; nothing where the newest one is damaged. Damaged ones that are newer
/// than the oldest of them are among them.
std::set<int64_t> CheckpointRetention::last_steps(
    const std::vector<CheckpointFolder>& checkpoints) {
  std::set<int64_t> steps;
  if (checkpoints.empty() || !is_valid(checkpoints.front())) {
    return steps;
  }
  steps.insert(checkpoints.front().step);
  int64_t valid = is_scheduled(checkpoints.front()) ? 1 : 0;
  std::vector<const CheckpointFolder*> others;
  for (size_t i = 1; i < checkpoints.size() && valid < rules_.keep_last; ++i) {
    if (is_scheduled(checkpoints[i])) {
      valid += is_valid(checkpoints[i]) ? 1 : 0;
      steps.insert(checkpoints[i].step);
    } else {
      others.push_back(&checkpoints[i]);
    }
  }
  valid += is_scheduled(checkpoints.front()) ? 0 : 1;
  for (const CheckpointFolder* other : others) {
    if (valid < rules_.keep_last) {
      valid += is_valid(*other) ? 1 : 0;
      steps.insert(other->step);
    }
  }
  return steps;
}

void CheckpointRetention::note(const std::string& sentence) {
  if (!sentence.empty() && noted_.insert(sentence).second) {
    notes_.push_back(sentence + "; the next save tries again");
  }
}

std::vector<fs::path> CheckpointRetention::apply() {
  const std::vector<CheckpointFolder> all = find_checkpoints(root_);
  const std::set<int64_t> last = last_steps(all);
  if (last.empty() || last.size() == all.size()) {
    return {};
  }
  const std::set<int64_t> best = rules_.keep_best > 0 ? best_steps(all) : std::set<int64_t>();
  std::vector<fs::path> deleted;
  for (const CheckpointFolder& checkpoint : all) {
    const bool stays = last.count(checkpoint.step) > 0 || best.count(checkpoint.step) > 0 ||
                       (rules_.keep_every > 0 && checkpoint.step % rules_.keep_every == 0);
    if (stays) {
      continue;
    }
    try {
      note(remove_checkpoint(checkpoint));
      verified_.erase(checkpoint.step);
      deleted.push_back(checkpoint.path);
    } catch (const DeviceError& error) {
      note(error.what());
    }
  }
  return deleted;
}

}  // namespace fp8train
