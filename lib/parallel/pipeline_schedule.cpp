#include "parallel/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/key_error.h"
#include "base/math.h"
#include "base/names.h"
#include "base/text.h"

namespace fp8train {
namespace {

constexpr std::string_view kLetters = "FBW";  // of ActionKind
constexpr double kNever = std::numeric_limits<double>::infinity();

/// When the outputs of a pipeline's passes are there.
class Outputs {
 public:
  explicit Outputs(const PipelineShape& shape)
      : shape_(shape), parts_(shape.stages * shape.chunks) {
    ends_.resize(static_cast<size_t>(2 * parts_ * shape.micro_batches), kNever);
  }

  /// The time at which another stage sends the input of an action; 0 if none does.
  double input(int stage, const PipelineAction& action) {
    const int part = part_of(stage, action);
    const int from = part + (action.kind == ActionKind::forward ? -1 : 1);
    const bool is_sent = action.kind != ActionKind::weight_gradient && from >= 0 && from < parts_;
    return is_sent ? end(action.kind, from, action.micro_batch) : 0.0;
  }
  /// The time from which a stage can run an action.
  double ready(int stage, const PipelineAction& action) {
    const auto before = static_cast<ActionKind>(static_cast<int>(action.kind) - 1);
    const double own = action.kind == ActionKind::forward
                           ? 0.0
                           : end(before, part_of(stage, action), action.micro_batch);
    return std::max(own, input(stage, action));
  }
  void set(int stage, const PipelineAction& action, double time) {
    if (action.kind != ActionKind::weight_gradient) {
      end(action.kind, part_of(stage, action), action.micro_batch) = time;
    }
  }

 private:
  int part_of(int stage, const PipelineAction& action) const {
    return action.chunk * shape_.stages + stage;
  }
  double& end(ActionKind kind, int part, int64_t micro_batch) {
    const int64_t pass = part + static_cast<int64_t>(kind) * parts_;
    return ends_[static_cast<size_t>(pass * shape_.micro_batches + micro_batch)];
  }

  PipelineShape shape_;
  int parts_;
  std::vector<double> ends_;
};

double duration(ActionKind kind, const ActionTimes& times, bool splits) {
  const double of_kind[] = {times.forward, times.backward + (splits ? 0.0 : times.weight_gradient),
                            times.weight_gradient};
  return of_kind[static_cast<size_t>(kind)];
}

/// List scheduling: whenever a stage is idle it runs a backward pass, else a forward pass if that
/// stores no more than allowed, else weight gradients that wait.
class ListScheduler {
 public:
  ListScheduler(const PipelineShape& shape, bool splits)
      : shape_(shape),
        splits_(splits),
        outputs_(shape),
        stages_(static_cast<size_t>(shape.stages)) {}

  PipelineSchedule make() {
    for (double now = 0; now < kNever;) {
      double next = kNever;
      for (int s = 0; s < shape_.stages; ++s) {
        Stage& stage = stages_[static_cast<size_t>(s)];
        if (stage.busy_until <= now) {
          start(s, now);
        }
        next = stage.busy_until > now ? std::min(next, stage.busy_until) : next;
      }
      now = next;
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

  std::optional<PipelineAction> next_action(int s, double now) {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    const auto [forwards, backwards, weights] = stage.done;
    const auto next = [&](ActionKind kind) {
      return PipelineAction{kind, 0, stage.done[static_cast<size_t>(kind)]};
    };
    const PipelineAction backward = next(ActionKind::backward);
    if (backwards < forwards && outputs_.ready(s, backward) <= now) {
      return backward;
    }
    const PipelineAction forward = next(ActionKind::forward);
    const bool fits = forwards - backwards < shape_.stages - s &&
                      (!splits_ || forwards - weights < shape_.stages);
    if (forwards < shape_.micro_batches && fits && outputs_.ready(s, forward) <= now) {
      return forward;
    }
    return splits_ && weights < backwards ? std::optional(next(ActionKind::weight_gradient))
                                          : std::nullopt;
  }

  void start(int s, double now) {
    const std::optional<PipelineAction> action = next_action(s, now);
    if (!action) {
      return;
    }
    Stage& stage = stages_[static_cast<size_t>(s)];
    stage.busy_until = now + duration(action->kind, {}, splits_);
    stage.actions.push_back(*action);
    ++stage.done[static_cast<size_t>(action->kind)];
    outputs_.set(s, *action, stage.busy_until);
  }

  PipelineShape shape_;
  bool splits_;
  Outputs outputs_;
  std::vector<Stage> stages_;
};

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

[[noreturn]] void refuse(size_t stage, const std::string& why) {
  throw ConfigError(fmt::format("pipeline schedule, stage {}: {}", stage, why));
}

/// Each action once, those of a chunk and a kind in the order of micro-batches.
void check_actions(size_t stage, const std::vector<PipelineAction>& actions,
                   const PipelineShape& shape, bool splits) {
  std::map<std::pair<ActionKind, int>, int64_t> next;
  for (const PipelineAction& action : actions) {
    if (action.chunk < 0 || action.chunk >= shape.chunks || action.micro_batch < 0 ||
        action.micro_batch >= shape.micro_batches) {
      refuse(stage, fmt::format("there is no {} among {} micro-batches and {}", text_of(action),
                                shape.micro_batches, counted(shape.chunks, "chunk")));
    }
    const int64_t due = next[{action.kind, action.chunk}]++;
    if (action.micro_batch != due) {
      refuse(stage, fmt::format("{} comes before {}", text_of(action),
                                text_of({action.kind, action.chunk, due})));
    }
  }
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    for (int kind = 0; kind < (splits ? 3 : 2); ++kind) {
      const PipelineAction missing = {static_cast<ActionKind>(kind), chunk,
                                      next[{static_cast<ActionKind>(kind), chunk}]};
      if (missing.micro_batch < shape.micro_batches) {
        refuse(stage, text_of(missing) + " is missing");
      }
    }
  }
}

int64_t most_held(const std::vector<PipelineAction>& actions, bool splits) {
  const ActionKind frees = splits ? ActionKind::weight_gradient : ActionKind::backward;
  int64_t held = 0;
  int64_t most = 0;
  for (const PipelineAction& action : actions) {
    held += action.kind == ActionKind::forward ? 1 : action.kind == frees ? -1 : 0;
    most = std::max(most, held);
  }
  return most;
}

/// `starts`: of the actions.
std::vector<ScheduleCost::Input> inputs_of(int stage, const std::vector<PipelineAction>& actions,
                                           const std::vector<double>& starts, Outputs& outputs) {
  std::map<double, std::vector<size_t>> readers;  // by the time at which their input is sent
  for (size_t i = 0; i < actions.size(); ++i) {
    const double sent = outputs.input(stage, actions[i]);
    if (sent > 0) {
      readers[sent].push_back(i);
    }
  }
  std::vector<ScheduleCost::Input> inputs;
  for (const auto& [sent, of_time] : readers) {
    const auto begun = std::ranges::lower_bound(starts, sent) - starts.begin();
    for (const size_t action : of_time) {
      inputs.push_back({action, static_cast<size_t>(begun)});
    }
  }
  return inputs;
}

}  // namespace

PipelineSchedule make_schedule(ScheduleKind kind, const PipelineShape& shape) {
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
  return ListScheduler(shape, kind == ScheduleKind::zero_bubble).make();
}

ScheduleCost check_schedule(const PipelineSchedule& schedule, const PipelineShape& shape,
                            const ActionTimes& times) {
  const auto parts = static_cast<size_t>(shape.stages) * static_cast<size_t>(shape.chunks);
  return check_schedule(schedule, shape, std::vector<ActionTimes>(parts, times));
}

ScheduleCost check_schedule(const PipelineSchedule& schedule, const PipelineShape& shape,
                            const std::vector<ActionTimes>& of_parts) {
  const std::vector<std::vector<PipelineAction>>& stages = schedule.of_stage;
  if (stages.size() != static_cast<size_t>(shape.stages)) {
    throw ConfigError(fmt::format("the pipeline schedule has {} stages, and the run has {}",
                                  stages.size(), shape.stages));
  }
  const bool splits = std::ranges::any_of(stages, [](const std::vector<PipelineAction>& actions) {
    return std::ranges::any_of(
        actions, [](const PipelineAction& a) { return a.kind == ActionKind::weight_gradient; });
  });
  ScheduleCost cost;
  for (size_t s = 0; s < stages.size(); ++s) {
    check_actions(s, stages[s], shape, splits);
    cost.held.push_back(most_held(stages[s], splits));
  }
  Outputs outputs(shape);
  std::vector<size_t> next(stages.size());
  cost.ends.resize(stages.size());
  cost.work.resize(stages.size());
  std::vector<std::vector<double>> starts(stages.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      for (; next[s] < stages[s].size(); ++next[s], moves = true) {
        const PipelineAction& action = stages[s][next[s]];
        const double ready = outputs.ready(static_cast<int>(s), action);
        if (ready == kNever) {
          break;
        }
        const size_t part = static_cast<size_t>(action.chunk) * stages.size() + s;
        const double time = duration(action.kind, of_parts[part], splits);
        starts[s].push_back(std::max(cost.ends[s], ready));
        cost.ends[s] = starts[s].back() + time;
        cost.work[s] += time;
        outputs.set(static_cast<int>(s), action, cost.ends[s]);
      }
    }
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    if (next[s] < stages[s].size()) {
      refuse(s, text_of(stages[s][next[s]]) + " waits for what comes after it");
    }
  }
  const double most = *std::ranges::max_element(cost.work);
  const double whole = *std::ranges::max_element(cost.ends);
  cost.bubble = (whole - most) / most;
  for (size_t s = 0; s < stages.size(); ++s) {
    cost.idle.push_back(1.0 - cost.work[s] / whole);
    cost.inputs.push_back(inputs_of(static_cast<int>(s), stages[s], starts[s], outputs));
  }
  return cost;
}

std::string text_of(const PipelineAction& action) {
  const char letter = kLetters[static_cast<size_t>(action.kind)];
  return action.chunk == 0 ? fmt::format("{}{}", letter, action.micro_batch)
                           : fmt::format("{}{}.{}", letter, action.micro_batch, action.chunk);
}

std::string text_of(const PipelineSchedule& schedule) {
  std::string text;
  for (size_t stage = 0; stage < schedule.of_stage.size(); ++stage) {
    text += fmt::format("stage {}:", stage);
    for (const PipelineAction& action : schedule.of_stage[stage]) {
      text += ' ' + text_of(action);
    }
    text += '\n';
  }
  return text;
}

PipelineSchedule read_schedule(std::string_view text) {
  PipelineSchedule schedule;
  for (const std::string& line : split(text, '\n')) {
    if (trimmed(line).empty()) {
      continue;
    }
    const std::string start = fmt::format("stage {}:", schedule.of_stage.size());
    if (!line.starts_with(start)) {
      throw ConfigError(
          fmt::format("pipeline schedule: \"{}\" does not begin with \"{}\"", line, start));
    }
    std::vector<PipelineAction>& actions = schedule.of_stage.emplace_back();
    for (const std::string& word : split(trimmed(line.substr(start.size())), ' ')) {
      const std::vector<std::string> numbers =
          split(std::string_view(word).substr(std::min<size_t>(1, word.size())), '.');
      const size_t kind = word.empty() ? std::string::npos : kLetters.find(word.front());
      const auto micro_batch = whole_number<int64_t>(numbers.front());
      const auto chunk = numbers.size() == 2 ? whole_number<int>(numbers.back()) : std::optional(0);
      if (kind == std::string::npos || !micro_batch || !chunk || numbers.size() > 2) {
        refuse(schedule.of_stage.size() - 1,
               fmt::format("\"{}\" is no action like F3, B3, W3 or F3.1", word));
      }
      actions.push_back({static_cast<ActionKind>(kind), *chunk, *micro_batch});
    }
  }
  return schedule;
}

}  // namespace fp8train
