#include "engine/stage_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace fp8train {
namespace {

/// The actions, from the first to the last, between which memory is in use.
struct Interval {
  size_t first, last;
  std::vector<size_t> users;  ///< the actions that get its number
};

class Planner {
 public:
  Planner(const std::vector<PipelineAction>& actions, const PipelineShape& shape, size_t stage)
      : shape_(shape), stage_(stage) {
    for (size_t i = 0; i < actions.size(); ++i) {
      plan_.actions.push_back({.action = actions[i]});
      index_[{actions[i].kind, actions[i].chunk, actions[i].micro_batch}] = i;
      plan_.splits = plan_.splits || actions[i].kind == ActionKind::weight_gradient;
    }
  }

  /// The receives of actions begin one action earlier or, in the order of a stream, as early as
  /// others send. What comes from one stage is received in the order in which it is sent.
  void plan_receives(const std::vector<StageOrder::Input>& inputs, bool in_stream_order) {
    std::vector<std::pair<size_t, size_t>> positions;  // and actions, the last one first
    size_t earliest[2] = {plan_.actions.size(), plan_.actions.size()};
    for (size_t i = inputs.size(); i-- > 0;) {
      const auto& [action, begun] = inputs[i];
      const bool from_next = shape_.stages > 2 && is(action, ActionKind::backward);
      size_t& position = earliest[from_next ? 1 : 0];
      position = std::min(position, in_stream_order ? begun : action);
      positions.emplace_back(position, action);
    }
    for (size_t i = positions.size(); i-- > 0;) {
      const auto& [position, action] = positions[i];
      (position == 0 ? plan_.receives_at_first : plan_.actions[position - 1].receives)
          .push_back(action);
      received_[action] = position == 0 ? 0 : position - 1;
    }
  }

  /// `begun`: StageOrder::begun_when_read; empty: memory of results is used again by the next
  /// pass of the kind, which waits until they are received.
  StagePlan make(const std::vector<size_t>& begun = {}) {
    const auto begun_at = [&](size_t i) { return begun.empty() ? size_t{0} : begun[i]; };
    std::vector<Interval> batches, saved, passes, x, y, outputs, gradients;
    for (size_t i = 0; i < plan_.actions.size(); ++i) {
      const auto& [kind, chunk, micro_batch] = plan_.actions[i].action;
      if (kind == ActionKind::backward) {
        gradients.push_back({received_at(i), std::max({i + 1, next_of(i), begun_at(i)}) - 1, {i}});
      }
      if (kind != ActionKind::forward) {
        continue;
      }
      const size_t backward = find(ActionKind::backward, chunk, micro_batch, i);
      const size_t last = find(ActionKind::weight_gradient, chunk, micro_batch, backward);
      saved.push_back({i, backward, {i, backward}});
      passes.push_back({i, last, {i, backward, last}});
      if (chunk == 0) {
        batches.push_back({i, backward, of_micro_batch(micro_batch)});
      }
      if (received_.contains(i)) {
        x.push_back({received_[i], backward, {i}});
      }
      const bool is_last = is_last_part(chunk);
      const size_t sent = std::max(next_of(i), std::max(begun_at(i), size_t{1}) - 1);
      (is_last ? outputs : y).push_back({i, is_last ? backward : sent, {i}});
    }
    StageMemory& memory = plan_.memory;
    memory.batches = number(batches, &StageAction::batch);
    memory.saved = number(saved, &StageAction::saved);
    memory.passes = number(passes, &StageAction::pass);
    memory.x = number(x, &StageAction::input);
    memory.y = number(y, &StageAction::output);
    memory.outputs = number(outputs, &StageAction::output);
    memory.gradients = number(gradients, &StageAction::input);
    return std::move(plan_);
  }

 private:
  bool is(size_t i, ActionKind kind) const { return plan_.actions[i].action.kind == kind; }
  bool is_last_part(int chunk) const {
    return chunk + 1 == shape_.chunks && stage_ + 1 == static_cast<size_t>(shape_.stages);
  }
  size_t find(ActionKind kind, int chunk, int64_t micro_batch, size_t otherwise) const {
    const auto found = index_.find({kind, chunk, micro_batch});
    return found == index_.end() ? otherwise : found->second;
  }
  size_t received_at(size_t i) const {
    const auto found = received_.find(i);
    return found == received_.end() ? i : found->second;
  }
  /// The next action of the same kind, or the end.
  size_t next_of(size_t i) const {
    size_t next = i + 1;
    while (next < plan_.actions.size() && !is(next, plan_.actions[i].action.kind)) {
      ++next;
    }
    return next;
  }
  std::vector<size_t> of_micro_batch(int64_t micro_batch) const {
    std::vector<size_t> actions;
    for (size_t i = 0; i < plan_.actions.size(); ++i) {
      if (plan_.actions[i].action.micro_batch == micro_batch) {
        actions.push_back(i);
      }
    }
    return actions;
  }
  /// Gives each interval the lowest number that no other one of its time has. Returns how many
  /// numbers there are.
  int number(std::vector<Interval>& intervals, int StageAction::*member) {
    std::stable_sort(intervals.begin(), intervals.end(),
                     [](const Interval& a, const Interval& b) { return a.first < b.first; });
    std::vector<size_t> free_from;  // of each number
    for (const Interval& interval : intervals) {
      auto found = std::find_if(free_from.begin(), free_from.end(),
                                [&](size_t from) { return from <= interval.first; });
      if (found == free_from.end()) {
        found = free_from.insert(found, 0);
      }
      *found = interval.last + 1;
      for (const size_t user : interval.users) {
        plan_.actions[user].*member = static_cast<int>(found - free_from.begin());
      }
    }
    return static_cast<int>(free_from.size());
  }

  PipelineShape shape_;
  size_t stage_;
  StagePlan plan_;
  std::map<std::tuple<ActionKind, int, int64_t>, size_t> index_;
  std::map<size_t, size_t> received_;  // by action: the one before which its receive begins
};

}  // namespace

void StageMemory::enlarge(const StageMemory& other) {
  for (int StageMemory::*const count :
       {&StageMemory::batches, &StageMemory::saved, &StageMemory::passes, &StageMemory::x,
        &StageMemory::y, &StageMemory::gradients, &StageMemory::outputs}) {
    this->*count = std::max(this->*count, other.*count);
  }
}

StagePlan plan_stage(const PipelineSchedule& schedule, const PipelineShape& shape, size_t stage,
                     bool in_stream_order, bool any_order) {
  check_schedule(schedule, shape);
  const StageOrder order = order_of_stage(schedule, shape, stage);
  const std::vector<size_t> begun = any_order ? order.begun_when_read : std::vector<size_t>();
  const auto planned = [&](bool in_order) {
    Planner planner(schedule.of_stage[stage], shape, stage);
    planner.plan_receives(order.inputs, in_order);
    return planner.make(begun);
  };
  StagePlan plan = planned(in_stream_order);
  plan.memory.enlarge(planned(!in_stream_order).memory);  // a dry run knows no communicator
  plan.micro_batches = shape.micro_batches;
  return plan;
}

StagePlan plan_micro_batch(PipelineShape shape, size_t stage, bool trains) {
  shape.micro_batches = 1;
  std::vector<PipelineAction> actions;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    actions.push_back({ActionKind::forward, chunk, 0});
  }
  for (int chunk = shape.chunks; trains && chunk-- > 0;) {
    actions.push_back({ActionKind::backward, chunk, 0});
  }
  std::vector<StageOrder::Input> inputs;
  const bool is_first = stage == 0;
  const bool is_last = stage + 1 == static_cast<size_t>(shape.stages);
  for (size_t i = 0; i < actions.size(); ++i) {
    const bool is_forward = actions[i].kind == ActionKind::forward;
    const bool is_sent = is_forward ? !is_first || actions[i].chunk > 0
                                    : !is_last || actions[i].chunk + 1 < shape.chunks;
    if (is_sent) {
      inputs.push_back({i, i});
    }
  }
  Planner planner(actions, shape, stage);
  planner.plan_receives(inputs, true);
  return planner.make();
}

}  // namespace fp8train
