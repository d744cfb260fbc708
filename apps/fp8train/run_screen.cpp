#include "run_screen.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/quantities.h"
#include "base/screen.h"
#include "base/text.h"
#include "overview.h"
#include "session_words.h"
#include "text_stream.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/run_start.h"
#include "train/session.h"

namespace fp8train {
namespace {

constexpr double kTickSeconds = 0.2;

/// The most important first.
std::vector<std::string> fields_of(const StepMetrics& metrics) {
  const auto remaining = static_cast<double>(metrics.max_steps - metrics.step);
  std::vector<std::string> fields = {
      fmt::format("step {}/{}", metrics.step, metrics.max_steps),
      fmt::format("loss {:.4f}", metrics.loss),
      fmt::format("{} tok/s", describe_count(metrics.tokens_per_second)),
      fmt::format("eta {}", describe_duration(remaining * metrics.seconds_per_step)),
      fmt::format("grad norm {:.3f}", metrics.gradient_norm),
      fmt::format("lr {:.2e}", metrics.lr)};
  if (metrics.skipped_steps > 0) {
    fields.insert(fields.begin() + 2, fmt::format("skipped {}", metrics.skipped_steps));
  }
  if (metrics.mfu) {
    fields.push_back(fmt::format("mfu {:.1f}%{}", 100 * *metrics.mfu,
                                 *metrics.mfu > 1 ? " (products were measured slow)" : ""));
  }
  if (metrics.speed_of_light) {
    fields.push_back(fmt::format("speed of light {:.1f}%", 100 * *metrics.speed_of_light));
  }
  if (metrics.experts) {
    fields.push_back(fmt::format("dropped {:.2f}%", 100 * metrics.experts->dropped));
    if (metrics.experts->balance_loss) {
      fields.push_back(fmt::format("balance loss {:.4f}", *metrics.experts->balance_loss));
    }
  }
  if (metrics.scaling != nullptr) {
    fields.push_back(fmt::format("{} sat {:.2f}% under {:.2f}%", metrics.scaling->formats,
                                 metrics.scaling->saturated_percent,
                                 metrics.scaling->underflow_percent));
  }
  fields.push_back(fmt::format("mem {}", describe_bytes(metrics.memory_bytes)));
  return fields;
}

/// Returns a remark on a last loss that shows no success; otherwise an empty text.
std::string remark_on_loss(double first, double last, int64_t vocabulary) {
  constexpr double kFarAbove = 1;  // nats per target: the probabilities are a third of the first
  constexpr double kEqual = 5e-5;  // the digits that are printed
  if (std::abs(last - std::log(static_cast<double>(vocabulary))) < kEqual) {
    return fmt::format(" (ln {}: the model gives every token the same probability)", vocabulary);
  }
  return first > 0 && last > first + kFarAbove
             ? fmt::format(
                   " (far above {:.4f}, where it began: training has diverged; "
                   "lower optimizer.lr)",
                   first)
             : "";
}

}  // namespace

std::string describe(const StepMetrics& metrics, size_t columns) {
  std::string line;
  for (const std::string& field : fields_of(metrics)) {
    const std::string longer = line.empty() ? field : fmt::format("{} | {}", line, field);
    if (!line.empty() && longer.size() > columns) {
      break;
    }
    line = longer;
  }
  return line;
}

RunScreen::~RunScreen() {
  RunScreen::did_all_steps();
}

void RunScreen::opened(const RunDirectory& directory) {
  directory_ = directory;
  log_.emplace(directory.log());
}

void RunScreen::noted(const Session& session) {
  log_notes(session, true);
}

void RunScreen::planned(const RunParts& parts, const RankMemory& memory,
                        const DryRunStep& dry_run) {
  const RankDevice& rank = *parts.rank_device;
  if (parts.comm->size() > 1) {
    say("ranks   {}; {}{}", parts.comm->description(),
        describe_layout(parts.session, parts.comm->topology()),
        rank.note.empty() ? "" : "; " + rank.note);
  }
  const bool by_category = parts.earlier_config.empty() || verbose_;
  for (const std::string& line :
       run_overview(parts.session, memory, device_lines(*rank.device, rank.reason, parts.threads),
                    dry_run, parts.found.step, by_category)) {
    put(line);
  }
}

void RunScreen::hashed(size_t files, uint64_t bytes_left) {
  say("hashes  {}{}", counted(static_cast<int64_t>(files), "data file"),
      bytes_left == 0
          ? ""
          : fmt::format(", {} of them while the run continues", describe_bytes(bytes_left)));
}

void RunScreen::entered_stage(const Session& session, const RankMemory& memory,
                              int64_t steps_done) {
  put(plan_line(session, memory, steps_done));
}

void RunScreen::loaded(const std::string& folder, std::optional<int64_t> step) {
  put(step ? fmt::format("resumed from {} at step {}", folder, *step) : "weights from " + folder);
}

void RunScreen::changed(const std::string& setting) {
  say("  changed since then: {}", setting);
}

void RunScreen::did_step(int64_t step, int64_t max_steps) {
  if (style_ == Style::pretty && since_tick_.seconds() >= kTickSeconds) {
    since_tick_.restart();
    line_open_ = true;
    print(fmt::format("{}step {}/{}", kRenew, step, max_steps));
  }
}

void RunScreen::measured(const StepMetrics& metrics) {
  dropped_ = metrics.experts ? std::optional(metrics.experts->dropped) : std::nullopt;
  // A terminal breaks a line that fills it.
  const size_t columns = style_ == Style::pretty ? terminal_columns(out_) - 1 : kNoColumns;
  put(describe(metrics), describe(metrics, columns));
}

void RunScreen::validated(int64_t step, const LossReport& loss, bool is_final, bool of_documents) {
  const char* const all = of_documents ? "all documents of the" : "the whole";
  say("step {}: val loss {:.4f} over {} tokens{}{}", step, loss.mean, loss.targets,
      loss.dropped > 0
          ? fmt::format(", {:.2f} % of the choices of experts dropped", 100 * loss.dropped)
          : "",
      is_final ? fmt::format(" ({} validation split)", all) : "");
}

void RunScreen::put_off_save(const UnsavedStep& unsaved) {
  using Reason = UnsavedStep::Reason;
  if (unsaved.reason == Reason::earlier_save) {
    log_warning(fmt::format(
        "the checkpoint of step {} is still being written when that of step {} is due: training "
        "waits for it; a larger checkpoint.interval, or auto, avoids that",
        unsaved.other_step, unsaved.step));
    return;
  }
  const char* const quantity = unsaved.reason == Reason::loss_not_finite ? "loss is not finite"
                               : unsaved.reason == Reason::gradient_not_finite
                                   ? "gradient is not finite"
                                   : "loss is high (training.spike_threshold)";
  log_warning(fmt::format(
      "step {} is not saved: {}. {}", unsaved.step,
      unsaved.reason == Reason::failure
          ? fmt::format("{}; the next save tries again, and {} failures in a row end the run "
                        "(checkpoint.max_failed_saves; so far {})",
                        unsaved.failure, unsaved.max_failures, unsaved.failures)
          : fmt::format("its {}; the next good step will be saved", quantity),
      intact_checkpoint(unsaved.other_step)));
}

void RunScreen::found_interval(const FoundInterval& interval) {
  log_info(fmt::format(
      "checkpoint.interval auto: a save every {} steps ({}); one stops training for {:.2g} s and "
      "is written in {:.2g} s, and the job is taken to fail every {}: {:.2g} % of its time is lost",
      interval.steps, describe_duration(interval.seconds), interval.stall, interval.write,
      describe_duration(interval.mtbf), 100 * interval.lost_part));
}

void RunScreen::went_back(const DivergenceError& divergence, const TrainingState& state,
                          int64_t max_rollbacks) {
  const Rollback& rollback = state.rollbacks.back();
  log_warning(fmt::format(
      "{}; the run goes back to step {} and leaves out samples {} to {} (rollback {} of at most "
      "{})",
      divergence.what(), rollback.to_step, rollback.first_sample, rollback.end_sample - 1,
      state.rollbacks.size(), max_rollbacks));
}

void RunScreen::sampled(int64_t step, const std::string& text) {
  say("sample at step {}:\n{}", step, text);
}

void RunScreen::changed_plan(int64_t step, const PrecisionPlan& plan, bool scales, bool is_new) {
  say("from step {} on: {}{}", step + 1,
      scales ? "plan " + plan.name : std::string(name_of(plan.activation)),
      is_new ? " (precision.schedule)" : "");
}

void RunScreen::did_all_steps() {
  if (line_open_) {
    line_open_ = false;
    print(kRenew);
  }
}

void RunScreen::stopped(int64_t step, const std::string& reason) {
  say("stopped at step {} ({}); {} holds everything: run the same command to continue", step,
      reason, directory_.checkpoints().string());
}

void RunScreen::had_nothing_to_do(int64_t step, const Session& session) {
  put(describe_end(session, step));
}

void RunScreen::finished(const TrainingState& state, const Session& session, int64_t steps,
                         double seconds) {
  say("done: {}, {} tokens{} in {}; loss {:.4f}{}{}{}; everything is in {}",
      counted(state.step, "step"), describe_count(state.tokens),
      steps == state.step ? "" : fmt::format(", {} since the last start", counted(steps, "step")),
      describe_duration(seconds), state.loss,
      remark_on_loss(state.first_loss, state.loss, session.engine.model.vocab_size),
      state.val_step > 0 ? fmt::format(", val loss {:.4f}", state.val_loss) : "",
      dropped_ ? fmt::format(", {:.2f} % of the choices of experts dropped", 100 * *dropped_) : "",
      directory_.root.string());
}

void RunScreen::put(const std::string& line) {
  put(line, fitted(out_, line));
}

void RunScreen::put(const std::string& logged, const std::string& shown) {
  try {
    if (log_) {
      log_->append(without_controls(logged) + "\n");
    }
  } catch (const DeviceError&) {  // metrics.jsonl, on the same disk, says so
  }
  if (style_ != Style::quiet) {
    const std::string start = line_open_ ? kRenew : "";
    line_open_ = false;
    print(start + without_controls(shown) + "\n");
  }
}

void RunScreen::print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), out_) == text.size() && std::fflush(out_) == 0) {
    return;
  }
  const int failure = errno;
  std::clearerr(out_);  // the program's end would take it for lost output
  style_ = Style::quiet;
  line_open_ = false;
  log_warning(
      fmt::format("progress cannot be written ({}); the run continues, and train.log has it",
                  std::error_code(failure, std::generic_category()).message()));
}

RunScreen::Style screen_style(ProgressFormat format, std::FILE* out) {
  if (format != ProgressFormat::automatic) {
    return format == ProgressFormat::pretty ? RunScreen::Style::pretty : RunScreen::Style::plain;
  }
  const char* terminal = std::getenv("TERM");
  const bool capable =
      terminal != nullptr && std::string(terminal) != "dumb" &&
      std::getenv("SLURM_JOB_ID") == nullptr &&
      std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr;  // mpirun's ranks have one each
  return capable && isatty(fileno(out)) == 1 ? RunScreen::Style::pretty : RunScreen::Style::plain;
}

}  // namespace fp8train
