#pragma once
// The screen of `fp8train train`: words for the events of a run, in its log and on standard output,
// where a line that is renewed has the number of the current step if that is a terminal.

#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/not_copied.h"
#include "train/run_listener.h"

namespace fp8train {

/// Returns "step 120/2000 | loss 3.4121 | 18.2k tok/s | eta 1m 42s | grad norm 0.810 | lr 2.90e-04
/// | mfu 41.2% | speed of light 74.0% | fp8 sat 0.00% under 0.12% | mem 21.0 MiB". Fields at the
/// end that go beyond `columns` are left out.
std::string describe(const StepMetrics& metrics,
                     size_t columns = std::numeric_limits<size_t>::max());

/// Writes each line to the end of the run's log too. If `out` cannot be written (a closed pipe, a
/// full disk), a warning says so once, and the log continues alone. It does not stop the run.
class RunScreen : public RunListener, NotCopied {
 public:
  enum class Style { pretty, plain, quiet };  ///< quiet: the log only

  /// `out` is not owned. `verbose`: the memory plan by category in each start of a run.
  RunScreen(Style style, std::FILE* out, bool verbose = false)
      : style_(style), out_(out), verbose_(verbose) {}
  ~RunScreen() override;

  /// Throws DeviceError if the log cannot be opened.
  void opened(const RunDirectory& directory) override;
  void noted(const Session& session) override;
  void planned(const RunParts& parts, const RankMemory& memory, const DryRunStep& dry_run) override;
  void hashed(size_t files, uint64_t bytes_left) override;
  void entered_stage(const Session& session, const RankMemory& memory, int64_t steps_done) override;
  void loaded(const std::string& folder, std::optional<int64_t> step) override;
  void changed(const std::string& setting) override;
  /// Renews the number of steps done on a terminal, at most a few times a second.
  void did_step(int64_t step, int64_t max_steps) override;
  void measured(const StepMetrics& metrics) override;
  void validated(int64_t step, const LossReport& loss, bool is_final, bool of_documents) override;
  void put_off_save(const UnsavedStep& unsaved) override;
  void found_interval(const FoundInterval& interval) override;
  void went_back(const DivergenceError& divergence, const TrainingState& state,
                 int64_t max_rollbacks) override;
  void sampled(int64_t step, const std::string& text) override;
  void changed_plan(int64_t step, const PrecisionPlan& plan, bool scales, bool is_new) override;
  /// Removes the renewed line.
  void did_all_steps() override;
  void stopped(int64_t step, const std::string& reason) override;
  void had_nothing_to_do(int64_t step, const Session& session) override;
  void finished(const TrainingState& state, const Session& session, int64_t steps,
                double seconds) override;

 private:
  template <typename... Values>
  void say(fmt::format_string<Values...> text, Values&&... values) {
    put(fmt::format(text, std::forward<Values>(values)...));
  }
  void put(const std::string& line);
  void put(const std::string& logged, const std::string& shown);
  void print(const std::string& text);

  Style style_;
  std::FILE* out_;
  bool verbose_;
  RunDirectory directory_;
  std::optional<double> dropped_;  ///< in the last logged step; nothing without experts
  std::optional<AppendedFile> log_;
  bool line_open_ = false;  // the renewed one
  Stopwatch since_tick_;
};

/// Returns the style that `format` means for a stream.
RunScreen::Style screen_style(ProgressFormat format, std::FILE* out);

}  // namespace fp8train
