// The engine of a stage of a run, and the switch to that of the next one (precision.schedule).

#include <fmt/format.h>

#include "base/flight_recorder.h"
#include "engine/dry_run.h"
#include "io/checkpoint/checkpoint.h"
#include "train/run.h"

namespace fp8train {

StepPlan Run::plan_of_stage() const {
  return dry_run_step(session_.engine, *device_, comm_->topology(), comm_->rank()).plan;
}

void Run::make_engine(const StepPlan& plan) {
  engine_ = std::make_unique<Engine>(*device_, session_.engine, comm_);
  engine_->reserve(plan);
}

void Run::make_generator() {
  if (settings().sample.interval > 0 && (leads() || engine_->passes_are_collective())) {
    generator_ = std::make_unique<Generator>(*device_, engine_->model(), sample_capacity(),
                                             engine_->strategy().gatherer());
  }
}

/// Says where steps in bf16 begin and end, and changes the engine for another scaled plan.
void Run::enter_stage_of_step() {
  const bool was_plain = session_.engine.is_plain(state_.step - 1);
  if (session_.stages[session_.stage_after(state_.step)].plan.name != session_.engine.plan.name) {
    begin_stage();
  }
  if (state_.step > 0 && session_.engine.is_plain(state_.step) != was_plain) {
    progress_.say(fmt::format("from step {} on: {}", state_.step + 1,
                              was_plain ? "plan " + session_.engine.plan.name
                                        : std::string(name_of(session_.engine.plan.activation))));
  }
}

void Run::enter_stage(size_t stage) {
  generator_.reset();
  engine_.reset();
  session_.enter_stage(stage);
  make_engine(plan_of_stage());
}

/// Another scaled plan: its engine resumes from the checkpoint of this step, as a run does that is
/// stopped here, so that both have the same bits.
void Run::begin_stage() {
  const SectionScope section(Section::start_up);
  watch_.take_losses(*engine_, state_);
  checkpoints_.save_last(*engine_, state_);
  enter_stage(session_.stage_after(state_.step));
  const ResumedRun saved =
      load_checkpoint(checkpoint_of_step(records_.directory().checkpoints(), state_.step), *engine_,
                      session_, *comm_);
  begin_at(saved.state);
  make_generator();
  progress_.say(fmt::format("from step {} on: plan {} (precision.schedule)", state_.step + 1,
                            session_.engine.plan.name));
  step_log_.restart_time();
}

}  // namespace fp8train
