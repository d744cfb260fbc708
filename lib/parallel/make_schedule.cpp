// The orders of a pipeline that functions make.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/key_error.h"
#include "base/math.h"
#include "base/names.h"
#include "parallel/pass_outputs.h"

namespace fp8train {
namespace {

/// As many forward passes as stages follow, then one backward pass and one forward pass
/// alternately. `splits`: weight gradients follow their backward pass, whose result is sent before.
PipelineSchedule alternate(const PipelineShape& shape, bool splits) {
  PipelineSchedule schedule;
  for (int64_t stage = 0; stage < shape.stages; ++stage) {
    const int64_t ahead = std::min<int64_t>(shape.stages - stage, shape.micro_batches);
    std::vector<PipelineAction>& actions = schedule.of_stage.emplace_back();
    for (int64_t i = 0; i < ahead; ++i) {
      actions.push_back({ActionKind::forward, 0, i});
    }
    for (int64_t i = 0; i < shape.micro_batches; ++i) {
      actions.push_back({ActionKind::backward, 0, i});
      if (splits) {
        actions.push_back({ActionKind::weight_gradient, 0, i});
      }
      if (ahead + i < shape.micro_batches) {
        actions.push_back({ActionKind::forward, 0, ahead + i});
      }
    }
  }
  return schedule;
}

/// List scheduling: whenever a stage is idle it runs a backward pass, else a forward pass if that
/// stores no more than allowed, else weight gradients that wait, unless another pass can begin
/// within `patience` of their time.
class ListScheduler {
 public:
  ListScheduler(const PipelineShape& shape, const std::vector<ActionTimes>& times, double patience)
      : shape_(shape),
        times_(times),
        patience_(patience),
        outputs_(shape),
        stages_(static_cast<size_t>(shape.stages)) {}

  PipelineSchedule make() {
    for (int s = 0; s < shape_.stages; ++s) {
      due_.emplace(0.0, s);
    }
    while (!due_.empty()) {
      const auto [now, s] = *due_.begin();
      due_.erase(due_.begin());
      if (stages_[static_cast<size_t>(s)].busy_until <= now) {
        start(s, now);
      }
    }
    PipelineSchedule schedule;
    for (Stage& stage : stages_) {
      schedule.of_stage.push_back(std::move(stage.actions));
    }
    return schedule;
  }

 private:
  struct Stage {
    double busy_until = 0;
    int64_t done[3] = {};  ///< actions of each kind
    std::vector<PipelineAction> actions;
  };

  std::optional<PipelineAction> next_action(int s, double now) const {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    const auto [forwards, backwards, weights] = stage.done;
    const auto next = [&](ActionKind kind) {
      return PipelineAction{kind, 0, stage.done[static_cast<size_t>(kind)]};
    };
    double soonest = kNever;
    const bool fits =
        forwards - backwards < shape_.stages - s && forwards - weights < shape_.stages;
    for (const auto& [kind, may_run] :
         {std::pair(ActionKind::backward, backwards < forwards),
          std::pair(ActionKind::forward, fits && forwards < shape_.micro_batches)}) {
      const double ready = may_run ? outputs_.ready(s, next(kind)) : kNever;
      if (ready <= now) {
        return next(kind);
      }
      soonest = std::min(soonest, ready);
    }
    const double time = times_[static_cast<size_t>(s)].weight_gradient;
    return weights < backwards && soonest - now >= patience_ * time
               ? std::optional(next(ActionKind::weight_gradient))
               : std::nullopt;
  }

  void start(int s, double now) {
    const std::optional<PipelineAction> action = next_action(s, now);
    if (!action) {
      return;
    }
    Stage& stage = stages_[static_cast<size_t>(s)];
    stage.busy_until = now + time_of(action->kind, times_[static_cast<size_t>(s)], true);
    stage.actions.push_back(*action);
    ++stage.done[static_cast<size_t>(action->kind)];
    outputs_.set(s, *action, stage.busy_until);
    for (int other = std::max(s - 1, 0); other <= std::min(s + 1, shape_.stages - 1); ++other) {
      due_.emplace(stage.busy_until, other);
    }
  }

  PipelineShape shape_;
  const std::vector<ActionTimes>& times_;
  double patience_;
  PassOutputs outputs_;
  std::vector<Stage> stages_;
  std::set<std::pair<double, int>> due_;  ///< times at which a stage may begin something
};

/// The one that ends first: 1F1B with weight gradients of their own, which is never slower than
/// 1F1B, list scheduling as if all passes took as long, or with their times.
PipelineSchedule delay_weight_gradients(const PipelineShape& shape,
                                        const std::vector<ActionTimes>& times) {
  PipelineSchedule best = alternate(shape, true);
  double best_end = run_on_paper(best, shape, times).end();
  const std::vector<ActionTimes> equal(times.size());
  for (const auto& [with, patience] :
       {std::pair(&equal, 0.0), {&times, 0.0}, {&times, 0.5}, {&times, 1.0}}) {
    PipelineSchedule other = ListScheduler(shape, *with, patience).make();
    const double end = run_on_paper(other, shape, times).end();
    if (end < best_end) {
      best = std::move(other);
      best_end = end;
    }
  }
  return best;
}

/// Micro-batches pass through the chunks in groups of as many as there are stages.
PipelineSchedule interleave(const PipelineShape& shape) {
  const int64_t group = shape.stages;
  if (shape.micro_batches % group != 0) {
    throw KeyError(
        "parallelism.schedule",
        fmt::format(
            ": interleaved takes a multiple of {} micro-batches with as many stages, and a step "
            "has {} (training.gradient_accumulation_steps); the next number that works is {}",
            group, shape.micro_batches, round_up(shape.micro_batches, group)));
  }
  const auto pass = [&](ActionKind kind, int64_t number) {
    const auto chunk = static_cast<int>(number / group % shape.chunks);
    return PipelineAction{kind, kind == ActionKind::forward ? chunk : shape.chunks - 1 - chunk,
                          number / (group * shape.chunks) * group + number % group};
  };
  const int64_t passes = shape.micro_batches * shape.chunks;
  PipelineSchedule schedule;
  for (int64_t stage = 0; stage < group; ++stage) {
    const int64_t ahead = std::min(passes, 2 * (group - stage - 1) + (shape.chunks - 1) * group);
    std::vector<PipelineAction>& actions = schedule.of_stage.emplace_back();
    for (int64_t i = 0; i < passes + ahead; ++i) {
      if (i < passes) {
        actions.push_back(pass(ActionKind::forward, i));
      }
      if (i >= ahead) {
        actions.push_back(pass(ActionKind::backward, i - ahead));
      }
    }
  }
  return schedule;
}

}  // namespace

PipelineSchedule make_schedule(ScheduleKind kind, const PipelineShape& shape,
                               const std::vector<ActionTimes>& of_parts) {
  check(shape.stages > 0 && shape.chunks > 0 && shape.micro_batches > 0,
        "a pipeline has stages, chunks and micro-batches");
  if (kind == ScheduleKind::interleaved) {
    return interleave(shape);
  }
  if (shape.chunks > 1) {
    throw KeyError("parallelism.virtual_stages",
                   fmt::format(" is {}, and with parallelism.schedule: {} each stage has one; set "
                               "it to 1, or take interleaved",
                               shape.chunks, name_in(kScheduleKinds, kind)));
  }
  if (kind == ScheduleKind::one_forward_one_backward) {
    return alternate(shape, false);
  }
  const std::vector<ActionTimes> equal(static_cast<size_t>(shape.stages));
  return delay_weight_gradients(shape, of_parts.empty() ? equal : of_parts);
}

}  // namespace fp8train
