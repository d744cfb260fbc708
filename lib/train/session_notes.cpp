#include "train/session_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "data/byte_stream.h"
#include "data/chat/dialogue.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "data/tokenizers/registry.h"
#include "optim/schedule.h"
#include "precision/linear_plan.h"

namespace fp8train {

void note_other_tokenizer(const Settings& settings, const Tokenizer& tokenizer, int64_t vocab_size,
                          std::vector<std::string>& notes) {
  const std::string& own = settings.model.from;
  if (own.empty() || tokenizer.vocab_size() == 0) {
    return;
  }
  if (!tokenizers::has_tokenizer(own)) {
    if (tokenizer.vocab_size() != vocab_size && !all_tokens(settings.data.train)) {
      notes.push_back(fmt::format(
          "data.tokenizer: '{}' has {} ids and the model of {} {}: its tokens may have other "
          "meanings; that folder has no tokenizer: set data.tokenizer to that of the weights",
          settings.data.tokenizer, tokenizer.vocab_size(), own, vocab_size));
    }
    return;
  }
  std::string remedy;
  try {
    if (make_tokenizer(own, {})->to_json() == tokenizer.to_json()) {
      return;
    }
    remedy = "set data.tokenizer: " + own;
  } catch (const DataError&) {  // a kind that is not read here
    remedy = "make token files with it and set data.tokenizer: none";
  }
  notes.push_back(fmt::format(
      "data.tokenizer: '{}' is not the tokenizer that these weights were trained with; {}",
      settings.data.tokenizer, remedy));
}

void note_short_run(const ScheduleSettings& schedule, int64_t steps,
                    std::vector<std::string>& notes) {
  if (schedule.warmup_steps >= steps) {
    notes.push_back(fmt::format(
        "scheduler.warmup_steps: the warm-up of {} steps does not end before the run's {} steps: "
        "the learning rate stays below optimizer.lr",
        schedule.warmup_steps, steps));
  } else if (schedule.decay_steps > steps - schedule.warmup_steps &&
             schedule_named(schedule.type).reads("scheduler.decay_steps")) {
    notes.push_back(fmt::format(
        "scheduler.decay_steps: warm-up ({}) and decay ({}) together are longer than the run's {} "
        "steps",
        schedule.warmup_steps, schedule.decay_steps, steps));
  }
}

void note_high_rate(const Settings& settings, int64_t steps, std::vector<std::string>& notes) {
  constexpr double kRateOfPretraining = 1e-4;
  const bool adapts = settings.model.config.lora.is_on() || !settings.model.lora_from.empty();
  if (!adapts && !settings.model.from.empty() && settings.optimizer.name != "sgd" &&
      settings.optimizer.lr >= kRateOfPretraining && settings.scheduler.warmup_steps == 0) {
    notes.push_back(fmt::format(
        "optimizer.lr: {} without warm-up can undo what the model of model.from has learned; "
        "unless "
        "it was trained at this rate, set optimizer.lr: 1e-5 and scheduler.warmup_steps: {}",
        settings.optimizer.lr, std::max<int64_t>(1, ceil_div(3 * steps, 100))));
  }
}

void note_nothing_scaled(const EngineSettings& engine, const PlanRequest& request,
                         std::vector<std::string>& notes) {
  if (!has_scaled_gemms(plan_named(engine.plan.name))) {
    return;
  }
  const bool overridden =
      std::find(request.override_linear_precision.begin(), request.override_linear_precision.end(),
                true) != request.override_linear_precision.end();
  const char* const keys =
      overridden ? "fp8.override_linear_precision" : "the operands under precision";
  std::map<std::string, int> reasons;
  for (const LinearPlan& linear : plan_linears(engine.plan, linear_sites(engine.model))) {
    if (linear.is_scaled()) {
      return;
    }
    const bool exempt = !linear.exempt_reason.empty();
    ++reasons[exempt ? linear.exempt_reason : fmt::format("taken out of them by {}", keys)];
  }
  std::string why;
  for (const auto& [reason, layers] : reasons) {
    why += fmt::format("{}{} ({})", why.empty() ? "" : "; ", reason, counted(layers, "layer"));
  }
  const std::string note =
      fmt::format("no GEMM runs in the formats of plan {}: {}", engine.plan.name, why);
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) {  // a plan of two stages
    notes.push_back(note);
  }
}

void note_many_epochs(const Corpus& train, const std::vector<double>& epochs,
                      std::vector<std::string>& notes) {
  constexpr double kManyEpochs = 1000;
  for (size_t i = 0; i < epochs.size(); ++i) {
    if (epochs[i] >= kManyEpochs) {
      notes.push_back(
          fmt::format("data.train: the run reads {} {:.0f} times; add data, or shorten the run",
                      train.is_blend() || train.sources().size() == 1
                          ? train.sources()[i].path
                          : fmt::format("its {} sources", train.sources().size()),
                      epochs[i]));
    }
  }
}

void note_unused_vocabulary(const Settings& settings, const Tokenizer& tokenizer,
                            int64_t vocab_size, std::vector<std::string>& notes) {
  constexpr int64_t kManyTimes = 16;
  constexpr int64_t kMultiple = 64;  // of GEMMs' extents
  const int64_t ids = tokenizer.vocab_size();
  if (ids == 0 || vocab_size < kManyTimes * ids || !settings.model.from.empty() ||
      all_tokens(settings.data.train)) {
    return;
  }
  notes.push_back(fmt::format(
      "data.tokenizer: '{}' has {} ids and the model a vocabulary of {}, most of which the text "
      "never uses; set data.tokenizer to a larger tokenizer, or model.vocab_size: {}",
      settings.data.tokenizer, ids, vocab_size, round_up(ids, kMultiple)));
}

void note_processes(const Settings& settings, int ranks, std::vector<std::string>& notes) {
  const int64_t processes = settings.notes.processes;
  if (processes > 0 && processes != ranks) {
    notes.push_back(fmt::format(
        "the configuration is for {} process{}, but {} rank{}; start with `mpirun -n {}` or "
        "`srun --mpi=pmix -n {}`",
        processes, processes == 1 ? "" : "es", ranks, ranks == 1 ? " runs" : "s run", processes,
        processes));
  }
}

}  // namespace fp8train
