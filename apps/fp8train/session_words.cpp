#include "session_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <variant>

#include "base/log.h"
#include "base/math.h"
#include "base/text.h"

namespace fp8train {
namespace {

/// One function for each kind of fact.
struct Words {
  const Session& session;
  const Settings& settings = session.settings;
  int64_t ids = session.tokenizer->vocab_size();
  int64_t vocabulary = session.engine.model.vocab_size;

  std::string operator()(SessionFact fact) const;
  std::string operator()(const NothingScaled& found) const;
  std::string operator()(const ManyEpochs& found) const;
  std::string operator()(const FileRemark& remark) const { return remark.text; }

  std::string other_tokenizer(const std::string& remedy) const {
    return fmt::format(
        "data.tokenizer: '{}' is not the tokenizer that these weights were trained with; {}",
        settings.data.tokenizer, remedy);
  }
  std::string other_processes() const;
};

std::string Words::operator()(SessionFact fact) const {
  constexpr int64_t kMultiple = 64;  // of GEMMs' extents
  const ScheduleSettings& schedule = settings.scheduler;
  switch (fact) {
    case SessionFact::whole_model_on_one_rank:
      return "parallelism: one rank has the whole model; plan for several with --world-size";
    case SessionFact::unused_zero_stage:
      return fmt::format(
          "parallelism.zero_stage: {} has no effect {}", settings.parallelism.zero_stage,
          session.ranks == 1
              ? "with one rank; start several with mpirun or srun, or plan for them with "
                "`fp8train estimate --world-size`"
              : "where no two ranks have the same part of the model; start more, or lower "
                "parallelism.tensor or parallelism.pipeline");
    case SessionFact::other_processes:
      return other_processes();
    case SessionFact::other_vocabulary:
      return fmt::format(
          "data.tokenizer: '{}' has {} ids and the model of {} {}: its tokens may have other "
          "meanings; that folder has no tokenizer: set data.tokenizer to that of the weights",
          settings.data.tokenizer, ids, settings.model.from, vocabulary);
    case SessionFact::other_tokenizer:
      return other_tokenizer("set data.tokenizer: " + settings.model.from);
    case SessionFact::unreadable_tokenizer:
      return other_tokenizer("make token files with it and set data.tokenizer: none");
    case SessionFact::unused_vocabulary:
      return fmt::format(
          "data.tokenizer: '{}' has {} ids and the model a vocabulary of {}, most of which the "
          "text never uses; set data.tokenizer to a larger tokenizer, or model.vocab_size: {}",
          settings.data.tokenizer, ids, vocabulary, round_up(ids, kMultiple));
    case SessionFact::long_warmup:
      return fmt::format(
          "scheduler.warmup_steps: the warm-up of {} does not end before the run's {}: the "
          "learning rate stays below optimizer.lr",
          counted(schedule.warmup_steps, "step"), counted(session.max_steps, "step"));
    case SessionFact::long_decay:
      return fmt::format(
          "scheduler.decay_steps: warm-up ({}) and decay ({}) together are longer than the run's "
          "{}",
          schedule.warmup_steps, schedule.decay_steps, counted(session.max_steps, "step"));
    case SessionFact::high_rate:
      return fmt::format(
          "optimizer.lr: {} without warm-up can undo what the model of model.from has learned; "
          "unless it was trained at this rate, set optimizer.lr: 1e-5 and "
          "scheduler.warmup_steps: {}",
          settings.optimizer.lr, std::max<int64_t>(1, ceil_div(3 * session.max_steps, 100)));
    case SessionFact::default_warmup:
      return fmt::format("scheduler.warmup_steps is not given: {}, which is 3 % of the run's {}",
                         schedule.warmup_steps, counted(session.max_steps, "step"));
    case SessionFact::unknown_steps:
      return "training.max_epochs: the number of steps follows from the data, which are not read "
             "here";
  }
  return "";
}

std::string Words::other_processes() const {
  const int64_t processes = settings.notes.processes;
  return fmt::format(
      "the configuration is for {} process{}, but {} rank{}; start with `mpirun -n {}` or "
      "`srun --mpi=pmix -n {}`",
      processes, processes == 1 ? "" : "es", session.ranks, session.ranks == 1 ? " runs" : "s run",
      processes, processes);
}

std::string Words::operator()(const NothingScaled& found) const {
  const auto& overrides = settings.precision.override_linear_precision;
  const bool overridden = std::ranges::find(overrides, true) != overrides.end();
  std::map<std::string, int> reasons;
  for (const auto& [reason, layers] : found.layers) {
    reasons[!reason.empty() ? reason
            : overridden    ? "taken out of them by fp8.override_linear_precision"
                            : "taken out of them by the operands under precision"] = layers;
  }
  std::string why;
  for (const auto& [reason, layers] : reasons) {
    why += fmt::format("{}{} ({})", why.empty() ? "" : "; ", reason, counted(layers, "layer"));
  }
  return fmt::format("no GEMM runs in the formats of plan {}: {}", found.plan, why);
}

std::string Words::operator()(const ManyEpochs& found) const {
  const Corpus& train = session.data.train;
  return fmt::format("data.train: the run reads {} {:.0f} times; add data, or shorten the run",
                     train.is_blend() || train.sources().size() == 1
                         ? train.sources()[found.source].path
                         : fmt::format("its {} sources", train.sources().size()),
                     found.epochs);
}

std::vector<std::string> lines_of(const Session& session, SessionNote::Kind kind) {
  std::vector<std::string> lines;
  for (const SessionNote& note : session.notes) {
    if (note.kind == kind) {
      lines.push_back(std::visit(Words{session}, note.fact));
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> lines_on_choices(const Session& session) {
  std::vector<std::string> lines = session.settings.notes.lines;
  std::ranges::move(lines_of(session, SessionNote::Kind::choice), std::back_inserter(lines));
  return lines;
}

std::string describe_end(const Session& session, int64_t step) {
  const std::string key = length_key(session.settings.training);
  return step > session.max_steps
             ? fmt::format(
                   "nothing to do: the checkpoint is of step {}, and the configuration asks for "
                   "{}; raise {} to train further",
                   step, counted(session.max_steps, "step"), key)
             : fmt::format(
                   "nothing to do: this run finished at step {}; raise {} to train further. "
                   "Everything is in {}",
                   step, key, session.settings.output_dir);
}

void log_notes(const Session& session, bool trains) {
  using Kind = SessionNote::Kind;
  std::ranges::for_each(lines_on_choices(session), log_info);
  if (trains) {
    std::ranges::for_each(lines_of(session, Kind::choice_of_training), log_info);
  }
  std::ranges::for_each(lines_of(session, Kind::warning), log_warning);
  if (trains) {
    std::ranges::for_each(lines_of(session, Kind::warning_of_training), log_warning);
  }
}

}  // namespace fp8train
