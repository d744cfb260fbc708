#include "parallel/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "parallel/pass_outputs.h"

namespace fp8train {
namespace {

[[noreturn]] void refuse(const PipelineSchedule& schedule, size_t stage, const std::string& why) {
  const std::string line =
      schedule.lines.empty() ? "" : fmt::format("line {}, ", schedule.lines[stage]);
  throw ConfigError(fmt::format("{}stage {}: {}", line, stage, why));
}

/// Each action once, those of a chunk and a kind in the order of micro-batches.
void check_actions(const PipelineSchedule& schedule, size_t stage, const PipelineShape& shape,
                   bool splits) {
  std::map<std::pair<ActionKind, int>, int64_t> next;
  for (const PipelineAction& action : schedule.of_stage[stage]) {
    if (action.chunk < 0 || action.chunk >= shape.chunks || action.micro_batch < 0 ||
        action.micro_batch >= shape.micro_batches) {
      refuse(schedule, stage,
             fmt::format("there is no {} among {} micro-batches and {}", text_of(action),
                         shape.micro_batches, counted(shape.chunks, "chunk")));
    }
    const int64_t due = next[{action.kind, action.chunk}]++;
    if (action.micro_batch < due) {
      refuse(schedule, stage, text_of(action) + " comes twice, or after a later one");
    }
    if (action.micro_batch > due) {
      refuse(schedule, stage,
             fmt::format("{} is missing before {}", text_of({action.kind, action.chunk, due}),
                         text_of(action)));
    }
  }
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    for (int kind = 0; kind < (splits ? 3 : 2); ++kind) {
      const PipelineAction missing = {static_cast<ActionKind>(kind), chunk,
                                      next[{static_cast<ActionKind>(kind), chunk}]};
      if (missing.micro_batch < shape.micro_batches) {
        refuse(schedule, stage,
               text_of(missing) + " is missing" +
                   (kind == 2 ? "; either all stages have actions W, or none has" : ""));
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
std::vector<StageOrder::Input> inputs_of(int stage, const std::vector<PipelineAction>& actions,
                                         const std::vector<double>& starts,
                                         const PassOutputs& outputs) {
  std::map<double, std::vector<size_t>> readers;  // by the time at which their input is sent
  for (size_t i = 0; i < actions.size(); ++i) {
    const double sent = outputs.input(stage, actions[i]);
    if (sent > 0) {
      readers[sent].push_back(i);
    }
  }
  std::vector<StageOrder::Input> inputs;
  for (const auto& [sent, of_time] : readers) {
    const auto begun = std::ranges::lower_bound(starts, sent) - starts.begin();
    for (const size_t action : of_time) {
      inputs.push_back({action, static_cast<size_t>(begun)});
    }
  }
  return inputs;
}

}  // namespace

PassOutputs::PassOutputs(const PipelineShape& shape)
    : shape_(shape), parts_(shape.stages * shape.chunks) {
  ends_.resize(static_cast<size_t>(2 * parts_ * shape.micro_batches), kNever);
}

double PassOutputs::neighbour(int stage, const PipelineAction& action, int step) const {
  const int other = part_of(stage, action) + (action.kind == ActionKind::forward ? step : -step);
  const bool is_sent = action.kind != ActionKind::weight_gradient && other >= 0 && other < parts_;
  return is_sent ? ends_[index(action.kind, other, action.micro_batch)] : 0.0;
}

double PassOutputs::ready(int stage, const PipelineAction& action) const {
  const auto before = static_cast<ActionKind>(static_cast<int>(action.kind) - 1);
  const double own = action.kind == ActionKind::forward
                         ? 0.0
                         : ends_[index(before, part_of(stage, action), action.micro_batch)];
  return std::max(own, input(stage, action));
}

void PassOutputs::set(int stage, const PipelineAction& action, double time) {
  if (action.kind != ActionKind::weight_gradient) {
    ends_[index(action.kind, part_of(stage, action), action.micro_batch)] = time;
  }
}

double time_of(ActionKind kind, const ActionTimes& times, bool splits) {
  const double of_kind[] = {times.forward, times.backward + (splits ? 0.0 : times.weight_gradient),
                            times.weight_gradient};
  return of_kind[static_cast<size_t>(kind)];
}

double PaperRun::end() const {
  return *std::ranges::max_element(ends);
}

PaperRun run_on_paper(const PipelineSchedule& schedule, const PipelineShape& shape,
                      const std::vector<ActionTimes>& of_parts) {
  const std::vector<std::vector<PipelineAction>>& stages = schedule.of_stage;
  const bool splits = schedule.splits();
  PaperRun run = {.outputs = PassOutputs(shape), .starts = {}, .ends = {}, .work = {}};
  run.starts.resize(stages.size());
  run.ends.resize(stages.size());
  run.work.resize(stages.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      std::vector<double>& starts = run.starts[s];
      for (; starts.size() < stages[s].size(); moves = true) {
        const PipelineAction& action = stages[s][starts.size()];
        const double ready = run.outputs.ready(static_cast<int>(s), action);
        if (ready == kNever) {
          break;
        }
        const size_t part = static_cast<size_t>(action.chunk) * stages.size() + s;
        const double time = time_of(action.kind, of_parts[part], splits);
        starts.push_back(std::max(run.ends[s], ready));
        run.ends[s] = starts.back() + time;
        run.work[s] += time;
        run.outputs.set(static_cast<int>(s), action, run.ends[s]);
      }
    }
  }
  return run;
}

bool PipelineSchedule::splits() const {
  return std::ranges::any_of(of_stage, [](const std::vector<PipelineAction>& actions) {
    return std::ranges::any_of(
        actions, [](const PipelineAction& a) { return a.kind == ActionKind::weight_gradient; });
  });
}

ScheduleCost check_schedule(const PipelineSchedule& schedule, const PipelineShape& shape,
                            const std::vector<ActionTimes>& of_parts) {
  const std::vector<std::vector<PipelineAction>>& stages = schedule.of_stage;
  if (stages.size() != static_cast<size_t>(shape.stages)) {
    throw ConfigError(fmt::format("the pipeline schedule has {}, and the run has {}",
                                  counted(std::ssize(stages), "stage"), shape.stages));
  }
  const bool splits = schedule.splits();
  ScheduleCost cost;
  for (size_t s = 0; s < stages.size(); ++s) {
    check_actions(schedule, s, shape, splits);
    cost.held.push_back(most_held(stages[s], splits));
  }
  const auto parts = static_cast<size_t>(shape.stages) * static_cast<size_t>(shape.chunks);
  PaperRun run =
      run_on_paper(schedule, shape, of_parts.empty() ? std::vector<ActionTimes>(parts) : of_parts);
  for (size_t s = 0; s < stages.size(); ++s) {
    if (run.starts[s].size() < stages[s].size()) {
      refuse(schedule, s,
             text_of(stages[s][run.starts[s].size()]) + " waits for what comes after it");
    }
  }
  const double most = *std::ranges::max_element(run.work);
  const double whole = run.end();
  cost.bubble = (whole - most) / most;
  for (size_t s = 0; s < stages.size(); ++s) {
    cost.idle.push_back(1.0 - run.work[s] / whole);
  }
  cost.work = std::move(run.work);
  cost.ends = std::move(run.ends);
  return cost;
}

StageOrder order_of_stage(const PipelineSchedule& schedule, const PipelineShape& shape,
                          size_t stage) {
  const int parts = shape.stages * shape.chunks;
  const PaperRun run =
      run_on_paper(schedule, shape, std::vector<ActionTimes>(static_cast<size_t>(parts)));
  PassOutputs starts(shape);
  for (size_t s = 0; s < schedule.of_stage.size(); ++s) {
    for (size_t i = 0; i < schedule.of_stage[s].size(); ++i) {
      starts.set(static_cast<int>(s), schedule.of_stage[s][i], run.starts[s][i]);
    }
  }
  const std::vector<PipelineAction>& actions = schedule.of_stage[stage];
  const std::vector<double>& own = run.starts[stage];
  const int number = static_cast<int>(stage);
  StageOrder order = {inputs_of(number, actions, own, run.outputs), {}};
  for (const PipelineAction& action : actions) {
    order.begun_when_read.push_back(static_cast<size_t>(
        std::ranges::lower_bound(own, starts.reader(number, action)) - own.begin()));
  }
  return order;
}

}  // namespace fp8train
