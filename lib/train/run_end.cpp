// How a run stops and how it ends, and what it leaves in summary.json.

#include <fmt/format.h>

#include "base/text.h"
#include "train/checkpoint/data_checks.h"
#include "train/run.h"
#include "train/run_length.h"

namespace fp8train {

RunOutcome Run::stop(const std::string& reason) {
  watch_.take_losses(*engine_, state_);
  checkpoints_.save_last(*engine_, state_);
  progress_.say(
      fmt::format("stopped at step {} ({}); {} holds everything: run the same command "
                  "to continue",
                  state_.step, reason, records_.directory().checkpoints().string()));
  return RunOutcome::stopped;
}

void Run::say_nothing_to_do() {
  const std::string key = length_key(settings().training);
  if (state_.step > session_.max_steps) {
    progress_.say(fmt::format(
        "nothing to do: the checkpoint is of step {}, and the configuration asks for {}; raise {} "
        "to train further",
        state_.step, counted(session_.max_steps, "step"), key));
    return;
  }
  progress_.say(
      fmt::format("nothing to do: this run finished at step {}; raise {} to train further. "
                  "Everything is in {}",
                  state_.step, key, records_.directory().root.string()));
}

RunOutcome Run::finish() {
  progress_.finish();
  check_data_at_end(session_);
  step_log_.warn_at_end();
  checkpoints_.end(*engine_, state_, settings().checkpoint.save_final);  // nothing can lose it then
  // A run that died between its last checkpoint and here has this evaluation already.
  if (session_.data.val.size() > 1 && state_.val_step != state_.step && !evaluate(0, true)) {
    checkpoints_.save_last(*engine_, state_);  // exit code 75 promises one, also without save_final
    return RunOutcome::stopped;
  }
  const double seconds = since_start_.seconds();
  records_.write_summary(summary(seconds));
  progress_.say(fmt::format(
      "done: {}, {} tokens{} in {}; loss {:.4f}{}{}; everything is in {}",
      counted(state_.step, "step"), describe_count(static_cast<double>(state_.tokens)),
      steps_done_ == state_.step
          ? ""
          : fmt::format(", {} since the last start", counted(steps_done_, "step")),
      describe_duration(seconds), state_.loss,
      describe_last_loss(state_.first_loss, state_.loss, session_.engine.model.vocab_size),
      state_.val_step > 0 ? fmt::format(", val loss {:.4f}", state_.val_loss) : "",
      records_.directory().root.string()));
  return RunOutcome::finished;
}

/// `seconds`: since the last start, evaluations and saves included.
JsonObject Run::summary(double seconds) const {
  const SaveTotals& saves = checkpoints_.totals();
  JsonObject all;
  all.add("plan", std::string_view(session_.engine.plan.name))
      .add("parameters", parameter_count(session_.engine.model))
      .add("steps", state_.step)
      .add("tokens", state_.tokens)
      .add("loss", state_.loss);
  if (state_.val_step > 0) {
    all.add("val_loss", state_.val_loss)
        .add("best_val_loss", state_.best_val_loss)
        .add("best_val_step", state_.best_val_step);
  }
  return all
      .add("last_start", JsonObject()
                             .add("steps", steps_done_)
                             .add("tokens", steps_done_ * session_.tokens_per_step())
                             .add("seconds", seconds))
      .add("tokens_per_second", step_log_.tokens_per_second())
      .add("peak_memory_bytes", static_cast<int64_t>(device_->ledger().peak()))
      .add("skipped_steps", engine_->optimizer().control().skipped_steps)
      .add("rollbacks", static_cast<int64_t>(state_.rollbacks.size()))
      .add("saves", saves.saved)
      .add("failed_saves", saves.failed)
      .add("save_stall_seconds", saves.stall_seconds)
      .add("save_write_seconds", saves.write_seconds);
}

}  // namespace fp8train
