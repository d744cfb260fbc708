#pragma once
// The progress lines of a run: one for each interval of logging. On a terminal they are not
// wider than it, and the number of the current step is below them.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>

#include "base/clock.h"
#include "base/screen.h"
#include "config/settings.h"

namespace fp8train {

struct StepMetrics;

/// Returns "step 120/2000 | loss 3.4121 | 18.2k tok/s | eta 1m 42s | grad norm 0.810 | lr 2.90e-04
/// | fp8 sat 0.00% under 0.12% | mem 21.0 MiB". Fields at the end that go beyond `columns` are left
/// out.
std::string describe(const StepMetrics& metrics,
                     size_t columns = std::numeric_limits<size_t>::max());

/// Returns "1h 02m", "3m 05s" or "12s".
std::string describe_duration(double seconds);

/// Returns "950", "18.2k", "1.05M" or "7.00B".
std::string describe_count(double count);

/// Returns "512 B", "21.4 MiB" or "504 MiB".
std::string describe_bytes(double bytes);

/// Prints the progress of a run, as lines or as one line that is renewed on a terminal.
class Progress {
 public:
  enum class Style { pretty, plain, quiet };  ///< quiet: the log file only

  /// Writes to `out` (not owned), and every line also to the end of the file `log`, if it has a
  /// name. Where `out` cannot be written (a closed pipe, a full disk), a warning says so once and
  /// the log continues alone. It does not stop the run.
  Progress(Style style, std::FILE* out, const std::filesystem::path& log);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Prints a line that stays.
  void show(const StepMetrics& metrics);
  /// Renews the number of steps done on a terminal, at most a few times a second.
  void tick(int64_t step, int64_t max_steps);
  /// Prints any other line that stays.
  void say(const std::string& line) { put(line, fitted(out_, line)); }
  /// Removes the renewed line.
  void finish();

 private:
  void put(const std::string& logged, const std::string& shown);
  void print(const std::string& text);

  Style style_;
  std::FILE* out_;
  std::filesystem::path log_path_;
  int log_ = -1;
  bool line_open_ = false;  // the renewed one
  Stopwatch since_tick_;
};

/// Returns the style that `format` means for a stream.
Progress::Style progress_style(ProgressFormat format, std::FILE* out);

}  // namespace fp8train
