#include "train/session.h"

#include <algorithm>

#include "base/error.h"
#include "data/text_source.h"
#include "data/tokenizers/registry.h"
#include "optim/registry.h"
#include "optim/schedule.h"
#include "precision/linear_plan.h"

namespace fp8train {

void note_other_tokenizer(Session& session) {
  const std::string& own = session.settings.model.from;
  const Tokenizer& tokenizer = *session.tokenizer;
  if (own.empty() || tokenizer.vocab_size() == 0) {
    return;
  }
  if (!tokenizers::has_tokenizer(own)) {
    if (tokenizer.vocab_size() != session.engine.model.vocab_size &&
        !all_tokens(session.settings.data.train)) {
      session.note(SessionFact::other_vocabulary);
    }
    return;
  }
  try {
    if (make_tokenizer(own, {})->to_json() != tokenizer.to_json()) {
      session.note(SessionFact::other_tokenizer);
    }
  } catch (const DataError&) {  // a kind that is not read here
    session.note(SessionFact::unreadable_tokenizer);
  }
}

void note_schedule(Session& session) {
  constexpr auto kKind = SessionNote::Kind::warning_of_training;
  constexpr double kRateOfPretraining = 1e-4;
  const Settings& settings = session.settings;
  const ScheduleSettings& schedule = settings.scheduler;
  if (schedule.warmup_steps >= session.max_steps) {
    session.note(SessionFact::long_warmup, kKind);
  } else if (schedule.decay_steps > session.max_steps - schedule.warmup_steps &&
             schedule_named(schedule.type).reads("scheduler.decay_steps")) {
    session.note(SessionFact::long_decay, kKind);
  }
  const bool adapts = settings.model.config.lora.is_on() || !settings.model.lora_from.empty();
  if (!adapts && !settings.model.from.empty() &&
      optimizer_named(settings.optimizer.name).normalizes_gradients &&
      settings.optimizer.lr >= kRateOfPretraining && schedule.warmup_steps == 0) {
    session.note(SessionFact::high_rate, kKind);
  }
}

void note_nothing_scaled(Session& session) {
  for (size_t i = 0; i < session.stages.size(); ++i) {
    const EngineSettings engine = session.engine_of(i);
    NothingScaled found = {engine.plan.name, {}};
    bool scales = !has_scaled_gemms(plan_named(engine.plan.name));
    for (const LinearPlan& linear : plan_linears(engine.plan, linear_sites(engine.model))) {
      scales = scales || linear.is_scaled();
      ++found.layers[linear.exempt_reason];
    }
    const SessionNote note = {SessionNote::Kind::warning, found};
    if (!scales && std::ranges::find(session.notes, note) == session.notes.end()) {
      session.notes.push_back(note);  // once for a plan of two stages
    }
  }
}

void note_many_epochs(Session& session, const std::vector<double>& epochs) {
  constexpr double kManyEpochs = 1000;
  for (size_t i = 0; i < epochs.size(); ++i) {
    if (epochs[i] >= kManyEpochs) {
      session.note(ManyEpochs{i, epochs[i]});
    }
  }
}

void note_unused_vocabulary(Session& session) {
  constexpr int64_t kManyTimes = 16;
  const int64_t ids = session.tokenizer->vocab_size();
  if (ids > 0 && session.engine.model.vocab_size >= kManyTimes * ids &&
      session.settings.model.from.empty() && !all_tokens(session.settings.data.train)) {
    session.note(SessionFact::unused_vocabulary);
  }
}

}  // namespace fp8train
